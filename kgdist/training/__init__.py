"""The loop, the step, losses.

autograd_step.py    the step in plain torch: any model, any device
callbacks.py        what Python hears of a training, and how it ends one
encoder_step.py     the step with a graph network in front
full_step.py        the step against all entities
fused_relations.py  the relation side of fused_step
fused_step.py       the step by compiled loops: built-in models on a CPU
loop.py             the training loop
losses.py           scores to one number
peers.py            workers that share their gradients
regularizer.py      what keeps rows small
relation_loss.py    the loss of the true relation among all
step.py             what a training step is
"""
