"""The options of what a training makes small: the loss and its candidates, inverse relations, regularisation, dropout, how
negatives are drawn and triples weighed. Fields of `Config`."""

from __future__ import annotations

import dataclasses
from functools import partial

from kgdist.options.option import option, whole_path

LOSSES = ("Hinge", "Logistic", "Logsigmoid", "BCE", "Softmax")
REGULARIZERS = ("lp", "n3", "f2", "dura")
_TRAIN = ("train", "dist-train")
_ALONE = ("train",)

_model = partial(option, group="model")
_training = partial(option, group="training")
_loss = partial(option, group="loss")
_negatives = partial(option, group="negative samples")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveOptions:
    """Of the objective. Those that DGL-KE has are as there."""

    # ---- model
    reciprocal: bool = _model(
        False,
        "give a relation and its inverse rows of their own, so that a missing head is the missing tail of the inverse: twice the "
        "rows of relations, and better ranks with most models (Lacroix et al. 2018)",
        ours=_TRAIN,
    )
    init_scale: float | None = _model(
        None,
        "range of --init uniform, or standard deviation of --init normal, instead of the one that follows from --gamma",
        above=0,
        high=1e6,
        ours=_TRAIN,
    )

    # ---- training
    plateau_factor: float = _training(
        0.5,
        "with --lr_schedule plateau: factor of the learning rate when the validation MRR no longer improves",
        above=0,
        high=1,
        ours=_TRAIN,
    )
    plateau_patience: int = _training(
        2, "with --lr_schedule plateau: validations without a better MRR to tolerate first", low=0, ours=_TRAIN
    )
    entity_dropout: float = _training(
        0.0, "share of the numbers in entities' rows that each step sets to 0", low=0, high=0.95, ours=_TRAIN
    )
    relation_dropout: float = _training(0.0, "the same for relations' rows", low=0, high=0.95, ours=_TRAIN)

    # ---- loss
    loss_genre: str = _loss(
        "Logsigmoid",
        "loss function; Softmax is the cross-entropy of the true entity among its candidates, where each negative stands for all "
        "the entities it was drawn from",
        choices=LOSSES,
        dglke=_TRAIN,
    )
    margin: float = _loss(1.0, "margin of the Hinge loss", short="-m", above=0, dglke=_TRAIN)
    pairwise: bool = _loss(
        False,
        "apply the loss to the difference between a positive and each of its negatives; with Logistic or Hinge",
        short="-pw",
        dglke=_TRAIN,
    )
    neg_adversarial_sampling: bool = _loss(
        False,
        "weight the negatives by their scores (self-adversarial, Sun et al. 2019); nearly always better",
        short="-adv",
        dglke=_TRAIN,
    )
    adversarial_temperature: float = _loss(1.0, "sharpness of those weights", short="-a", above=0, dglke=_TRAIN)
    candidates: str = _loss(
        "sampled",
        "what a true entity is compared with: sampled, the negatives that a step draws; all, every entity, by --loss_genre "
        "Softmax or by a sum of binary losses, on one machine. A step then takes --batch_size queries (head, relation, ?) or "
        "(?, relation, tail), with --reciprocal of both, each with its --answers",
        choices=("sampled", "all"),
        ours=_ALONE,
    )
    answers: int = _loss(
        4,
        "with --candidates all: most true answers of a query in one step, which share its scores; 0: all of them. More are "
        "cheaper; a smaller --batch_size keeps as many steps, and the --lr that was right",
        low=0,
        ours=_ALONE,
    )
    k_vs_all: bool = _loss(
        False,
        "with --candidates all: all answers of a query together are one example (K-vs-all), instead of each answer being one "
        "(1-vs-all). A step then takes all answers, unless --answers says otherwise",
        ours=_ALONE,
    )
    label_smoothing: float = _loss(
        0.0,
        "with --loss_genre Softmax, or --candidates all: share, below 1, of the probability that is spread evenly over all "
        "entities",
        low=0,
        ours=_TRAIN,
    )
    relation_loss: float = _loss(
        0.0,
        "weight of a second loss, the cross-entropy of the true relation among all relations, given head and tail (Chen et al. "
        "2021); for TransE, DistMult, ComplEx, SimplE and RESCAL",
        low=0,
        ours=_TRAIN,
    )
    bernoulli: bool = _loss(
        False,
        "weight the two sides of a relation by the number of tails per head and of heads per tail: the side with fewer true "
        "answers counts more (Wang et al. 2014)",
        ours=_TRAIN,
    )
    subsampling: bool = _loss(
        False,
        "weight a triple by the inverse square root of how often its (head, relation) and its (relation, tail) occur, as the "
        "authors of RotatE do (Sun et al. 2019)",
        ours=_TRAIN,
    )
    answer_weight: float = _loss(
        1.0,
        "weight of a triple whose missing entity is the rarest in train, if one with the most frequent entity has weight 1; the "
        "others lie between, by frequency (Zhang et al. 2020). 1: all have the same weight",
        above=0,
        high=1,
        ours=_TRAIN,
    )
    regularization_coef: float = _loss(
        2e-6,
        "factor of the norm of the embeddings in the loss: for lp 1e-9 to 1e-5, for n3, f2 and dura .001 to .1; 0: no "
        "regularisation",
        short="-rc",
        low=0,
        dglke=_TRAIN,
    )
    regularization_norm: int = _loss(
        3, "exponent p of lp's norm, the sum of abs(x)^p; 0: no regularisation", short="-rn", low=0, high=64, dglke=_TRAIN
    )
    regularizer: str = _loss(
        "lp",
        "what --regularization_coef multiplies: lp, that norm of the rows that a step uses; or, as a mean over triples: n3, "
        "cubes of the moduli of head, relation and tail (Lacroix et al. 2018); f2, their squares; dura, squares of head, tail "
        "and both queries (Zhang et al. 2020)",
        choices=REGULARIZERS,
        ours=_TRAIN,
    )
    relation_regularization_coef: float | None = _loss(
        None,
        "the factor for relations (dura: for queries), if it differs from --regularization_coef",
        low=0,
        ours=_TRAIN,
    )

    # ---- negative samples
    neg_sample_size: int = _negatives(
        256, "negatives per positive; also the number of positives that share them (a chunk)", low=1, dglke=_TRAIN
    )
    neg_deg_sample: bool = _negatives(
        False,
        "use the entities of the chunk's other positives as negatives too, so that frequent entities come up more often",
        dglke=_TRAIN,
    )
    neg_sampler: str = _negatives(
        "uniform",
        "which entities are drawn as negatives: uniform, any; typed, those that the train split has at that end of the relation, "
        "or all entities of their types (--entity_types). Batches are then sorted by relation, and a chunk's negatives are "
        "divided among its relations",
        choices=("uniform", "typed"),
        ours=_TRAIN,
    )
    entity_types: str | None = _negatives(
        None,
        "file of lines entity<TAB>type: with --neg_sampler typed, negatives are the entities of the types that the relation has "
        "at that end. For several machines, give it to kgdist-partition, too",
        clean=whole_path,
        metavar="FILE",
        ours=("train", "partition"),
    )
    mask_known: bool = _negatives(
        False,
        "leave out negatives that are true by the train split (several machines: by the machine's own part of it)",
        ours=_TRAIN,
    )
