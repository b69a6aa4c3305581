"""The options of what a training makes small: the loss and its candidates, inverse relations, regularisation, dropout, how
negatives are drawn and triples weighed. Fields of `Config`."""

from __future__ import annotations

import dataclasses
import os
from functools import partial

from kgdist.options.option import option

LOSSES = ("Hinge", "Logistic", "Logsigmoid", "BCE", "Softmax")
REGULARIZERS = ("lp", "n3", "f2", "dura")
_TRAIN = ("train", "dist-train")
_ALONE = ("train",)

_model = partial(option, group="model")
_training = partial(option, group="training")
_loss = partial(option, group="loss")
_negatives = partial(option, group="negative samples")


def _whole_path(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveOptions:
    """Of the objective. Those that DGL-KE has are as there."""

    # ---- model
    reciprocal: bool = _model(
        False,
        "a relation and its inverse have rows of their own, so that a missing head is the missing tail of the inverse: twice the "
        "rows of relations, and better ranks with most models (Lacroix et al. 2018)",
        ours=_TRAIN,
    )
    init_scale: float | None = _model(
        None,
        "range of --init uniform, or standard deviation of --init normal, instead of those that follow from --gamma",
        above=0,
        ours=_TRAIN,
    )

    # ---- training
    plateau_factor: float = _training(
        0.5,
        "with --lr_schedule plateau: what the rate is multiplied by when validations no longer improve",
        above=0,
        high=1,
        ours=_TRAIN,
    )
    plateau_patience: int = _training(
        2, "with --lr_schedule plateau: so many validations without a better MRR are still waited for", low=0, ours=_TRAIN
    )
    entity_dropout: float = _training(
        0.0, "share of the numbers of entities' rows that a step sets to 0, others in each step", low=0, high=0.95, ours=_TRAIN
    )
    relation_dropout: float = _training(0.0, "the same of relations' rows", low=0, high=0.95, ours=_TRAIN)

    # ---- loss
    loss_genre: str = _loss(
        "Logsigmoid",
        "loss of a score; Softmax: cross-entropy of the true entity among its candidates, where each negative stands for all "
        "those it was drawn from",
        choices=LOSSES,
        dglke=_TRAIN,
    )
    margin: float = _loss(1.0, "margin of the Hinge loss", short="-m", above=0, dglke=_TRAIN)
    pairwise: bool = _loss(
        False,
        "loss of the difference between a positive and each of its negatives; with Logistic or Hinge",
        short="-pw",
        dglke=_TRAIN,
    )
    neg_adversarial_sampling: bool = _loss(
        False,
        "weigh the negatives by how well they score (self-adversarial, Sun et al. 2019); nearly always better",
        short="-adv",
        dglke=_TRAIN,
    )
    adversarial_temperature: float = _loss(1.0, "sharpness of those weights", short="-a", above=0, dglke=_TRAIN)
    candidates: str = _loss(
        "sampled",
        "whom a true entity is held against: sampled, the negatives that a step draws; all, every entity, by --loss_genre "
        "Softmax or by a sum of binary losses, on one machine. A step then takes --batch_size queries (head, relation, ?) or "
        "(?, relation, tail), each with its --answers",
        choices=("sampled", "all"),
        ours=_ALONE,
    )
    answers: int = _loss(
        4,
        "with --candidates all: at most so many true answers of a query are taken at once, since they share its scores; 0: all "
        "there are. More are cheaper, and want a larger --lr",
        low=0,
        ours=_ALONE,
    )
    k_vs_all: bool = _loss(
        False,
        "with --candidates all: the set of a query's answers is one example (K-vs-all), and not each answer one (1-vs-all). All "
        "answers are then taken at once, unless --answers says otherwise",
        ours=_ALONE,
    )
    label_smoothing: float = _loss(
        0.0,
        "with --loss_genre Softmax, or --candidates all: share of the probability that is spread evenly over all entities",
        low=0,
        ours=_TRAIN,
    )
    relation_loss: float = _loss(
        0.0,
        "weight of a second loss, the cross-entropy of the true relation among all, given head and tail (Chen et al. 2021). For "
        "TransE, DistMult, ComplEx, SimplE and RESCAL",
        low=0,
        ours=_TRAIN,
    )
    bernoulli: bool = _loss(
        False,
        "weigh the two sides of a relation by how many tails a head has, and how many heads a tail: the side counts more at "
        "which fewer answers are true (Wang et al. 2014)",
        ours=_TRAIN,
    )
    subsampling: bool = _loss(
        False,
        "weigh a triple by the inverse root of how often its (head, relation) and its (relation, tail) occur, as the authors of "
        "RotatE do (Sun et al. 2019)",
        ours=_TRAIN,
    )
    answer_weight: float = _loss(
        1.0,
        "what a triple weighs whose missing entity hardly occurs in train, where one with the most frequent entity weighs 1; the "
        "others stand between by how often they occur (Zhang et al. 2020). 1: all weigh the same",
        above=0,
        high=1,
        ours=_TRAIN,
    )
    regularization_coef: float = _loss(
        2e-6, "factor of the norm of the embeddings that is added to the loss; 0 for none", short="-rc", low=0, dglke=_TRAIN
    )
    regularization_norm: int = _loss(
        3, "exponent p of that norm, the sum of abs(x)^p; 0 for none", short="-rn", low=0, high=64, dglke=_TRAIN
    )
    regularizer: str = _loss(
        "lp",
        "what --regularization_coef is the factor of: lp, that norm of the rows that a step looks up; or, as a mean over "
        "triples: n3, cubes of the moduli of head, relation and tail (Lacroix et al. 2018); f2, their squares; dura, squares of "
        "head, tail and both queries (Zhang et al. 2020)",
        choices=REGULARIZERS,
        ours=_TRAIN,
    )
    relation_regularization_coef: float | None = _loss(
        None,
        "the factor for relations (dura: for queries), where it is to be another one than --regularization_coef",
        low=0,
        ours=_TRAIN,
    )

    # ---- negative samples
    neg_sample_size: int = _negatives(
        256, "negatives of each positive; also the number of positives that share them (a chunk)", low=1, dglke=_TRAIN
    )
    neg_deg_sample: bool = _negatives(
        False,
        "take the entities of the chunk's other positives as negatives too: frequent entities come up more often",
        dglke=_TRAIN,
    )
    neg_sampler: str = _negatives(
        "uniform",
        "which entities are drawn: uniform, any; typed, those that the train split has with the relation at that end, or all of "
        "the types that these have (--entity_types). Positives then stand by relation, and a chunk's draws are dealt to its "
        "relations",
        choices=("uniform", "typed"),
        ours=_TRAIN,
    )
    entity_types: str | None = _negatives(
        None,
        "a file of lines entity TAB type: with --neg_sampler typed, negatives are then the entities of those types that the "
        "relation has at that end. For several machines kgdist-partition puts them into the partitions",
        clean=_whole_path,
        metavar="FILE",
        ours=("train", "partition"),
    )
    mask_known: bool = _negatives(
        False,
        "leave out candidates that the train split knows to be true as well (several machines: the machine's own part of it)",
        ours=_TRAIN,
    )
