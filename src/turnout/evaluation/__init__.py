"""Measuring models.

    settings       what an experiment asks to be measured
    metrics        loss and metrics of one model on many samples, or of every client's own model on its own samples
    probes         what participants measure of themselves during a round: accuracy before and after training, gradients
    activations    how aggregation moves the neurons before BatchNorm (paper 004, §3.3)

May import the engine and everything below it.
"""
