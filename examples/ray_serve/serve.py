"""A trained run answers over HTTP, by Ray Serve: `python serve.py ckpts/TransE_l2_wordnet_0`."""

import argparse
import os
import time

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import kgdist

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("run", help="its folder; on a cluster, one that all nodes see")
parser.add_argument("--host", default="127.0.0.1", help="whoever reaches this address may ask")
parser.add_argument("--port", type=int, default=8000)
parser.add_argument("--num_replicas", type=int, default=1, help="processes that answer, with a CPU each")


@serve.deployment(ray_actor_options={"num_cpus": 1})
class Answers:
    """One replica. The rows are mapped from the run's files: replicas on one node have them in memory once."""

    def __init__(self, run):
        self.run = kgdist.load(run)
        self.run.predict(head=self.run.entities[0], relation=self.run.relations[0], k=1)  # compiled before the first question

    def __call__(self, request: Request):
        asked = dict(request.query_params)
        try:
            k, known = int(asked.pop("k", 10)), asked.pop("exclude_known", "false")
            if known not in ("true", "false"):
                raise ValueError(f"exclude_known is true or false, not {known}")
            if request.url.path == "/predict":
                found = self.run.predict(**asked, k=k, exclude_known=known == "true")
            elif request.url.path == "/similar":
                found = self.run.similar(**asked, k=k)
            else:
                return JSONResponse({"error": "ask /predict or /similar"}, status_code=404)
        except (kgdist.KgdistError, TypeError, ValueError) as error:  # a name that is not known, a word that is no option
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse([row._asdict() for row in found])


if __name__ == "__main__":
    args = parser.parse_args()
    serve.start(http_options={"host": args.host, "port": args.port})
    serve.run(Answers.options(num_replicas=args.num_replicas).bind(os.path.abspath(args.run)))
    print(f"http://{args.host}:{args.port} answers; Ctrl-C ends it", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        serve.shutdown()
