"""The commands, one file each.

client.py      kgdist-client
command.py     errors to one line and an exit code
compare.py     kgdist-compare
completion.py  kgdist completion
convert.py     kgdist-convert
copy.py        kgdist-copy
dist_train.py  kgdist-dist-train
doctor.py      kgdist doctor
emb_sim.py     kgdist-emb-sim
encode.py      kgdist-encode
eval.py        kgdist-eval
export.py      kgdist-export
gnn.py         a worker of kgdist-dist-train --encoder
import_.py     kgdist-import
inspect.py     kgdist-inspect
kgdist.py      kgdist: all commands by one name
launch.py      kgdist-launch
partition.py   kgdist-partition
predict.py     kgdist-predict
preprocess.py  kgdist-preprocess
serve.py       kgdist-serve
server.py      kgdist-server
split.py       kgdist-split
train.py       kgdist-train
tune.py        kgdist-tune
"""
