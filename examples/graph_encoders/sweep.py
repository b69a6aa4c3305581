"""Ray Tune looks for a good encoder: python sweep.py [TRIALS [STEPS]], on the Ray there is, or on one of its own.

Each trial trains alone, reports every validation, and is ended early when others were better by then (ASHA).
"""

import os
import sys
import tempfile

import ray
from ray import tune

import kgdist

TRIALS, STEPS = (int(word) for word in (*sys.argv[1:], *("8", "400")[len(sys.argv) - 1 :]))
SPACE = {
    "encoder": tune.choice(["rgcn", "compgcn", "sage"]),
    "dropout": tune.uniform(0.0, 0.4),
    "encoder_lr": tune.loguniform(1e-3, 3e-2),
}
SAME = {
    "dataset": "wordnet",
    "model_name": "DistMult",
    "hidden_dim": 32,
    "encoder_dim": 32,
    "batch_size": 512,
    "neg_sample_size": 128,
    "gamma": 8,
    "lr": 0.1,
    "neg_adversarial_sampling": True,
    "regularization_coef": 0,
    "max_step": STEPS,
    "valid": True,
    "eval_interval": STEPS // 4,
    "eval_percent": 0.2,
    "quiet": True,
}


def trial(config: dict[str, object]) -> None:
    """One training."""

    def heard(event: object) -> None:
        if isinstance(event, kgdist.Validation):
            tune.report({"mrr": event.mrr, "step": event.step})

    with tempfile.TemporaryDirectory() as folder:
        kgdist.train(**SAME, **config, save_path=folder, callbacks=[heard])


ray.init(ignore_reinit_error=True, log_to_driver=False)
tuner = tune.Tuner(
    tune.with_resources(trial, {"cpu": 1}),
    param_space=SPACE,
    run_config=tune.RunConfig(storage_path=os.path.abspath("sweep")),
    tune_config=tune.TuneConfig(
        metric="mrr",
        mode="max",
        num_samples=TRIALS,
        scheduler=tune.schedulers.ASHAScheduler(time_attr="step", max_t=STEPS, grace_period=STEPS // 4),
    ),
)
best = tuner.fit().get_best_result()
print(f"best MRR {best.metrics['mrr']:.3f}: kgdist.train(**{SAME | best.config})")
