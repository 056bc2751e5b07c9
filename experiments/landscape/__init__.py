"""Are the models of post-local SGD flatter than those of mini-batch SGD? (Lin et al. 2020, 5.1)

    python -m experiments.landscape [--settings digits fashion-mnist] [--data-dir ...] [--out ...]

design      what is trained, what is measured, and what counts as a claim that holds
arms        phase 1 once for each seed, and the arms that go on from it
rounds      how far chance moves one round: local SGD's averaged model against mini-batch SGD's
measures    what is measured of the models that come out
study       one seed of one setting after the other, kept when it is done
claims      the paper's claims, by paired differences over seeds
figures     drawn from the records alone
report      the page
"""
