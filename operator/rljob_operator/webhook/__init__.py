"""The validating webhook: refuses at once what the operator would refuse later. `python -m rljob_operator.webhook`.

    review/ (pure): the answer to a review, from rules, capacity, plan and pruned fields
    server: HTTPS, with a certificate that is renewed in place; capacity_watch: quotas and nodes

kopf's webhook server does not fit: it reads its certificate once, makes another one in every replica, and writes the
webhook's configuration without selectors and match conditions.
"""
