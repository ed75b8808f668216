"""The training loop. It knows the order of things and nothing else: assembly chose every part.

prompts ─► rollouts ─► rewards ─► batches ─► learner ─► weights ─► report ─► checkpoints
              ▲                                            │
              └────────── version of the weights ──────────┘
"""

from rljob_trainer.parts import Parts


def train(parts: Parts, first: int, steps: int) -> bool:
    """Take steps `first` to `steps - 1`; return whether all were taken (False: asked to stop, and saved).

    Step k trains on samples of weights version k, or of the last ones where rollouts are ahead, and publishes version
    k + 1, or leaves that to a later step.
    """
    measure = parts.phases.measure
    if first == 0 and not parts.orders.requested:
        with measure("evaluate"):
            parts.report.evaluation(0, parts.evaluation.measure())
    if parts.orders.requested:
        return False
    for step in range(first, steps):
        with measure("rollout"):
            groups = parts.rollouts.collect(step)
        with measure("reward"):
            scored = parts.rewards.score(groups)
        with measure("advantage"):
            batches = parts.batches(scored)
        with measure("train"), parts.gpu_sharing.training():
            training = parts.learner.train(batches)
        with measure("publish"):
            publication = parts.weights.publish(step + 1)
        with measure("report"):
            parts.rollouts.consumed(step)
            parts.report.step(step + 1, scored, training, publication)
        if parts.cadence.evaluates(step + 1):
            with measure("evaluate"):
                parts.report.evaluation(step + 1, parts.evaluation.measure())
        ends = parts.orders.requested
        if ends or step + 1 == steps:
            with measure("checkpoint"), parts.gpu_sharing.saving():
                parts.checkpoints.save(step + 1)
        elif parts.cadence.saves(step + 1):
            with measure("checkpoint"), parts.gpu_sharing.saving():
                parts.checkpoints.begin(step + 1)
        else:
            parts.checkpoints.check()
        if ends:
            return step + 1 == steps
    return True
