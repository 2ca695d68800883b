"""Three devices with different labels and different models improve each other, and never send a weight.

A camera knows 3 and 5, a phone 5 and 8, a watch 8 and 9. Every round each sees a few new digits of its own, trains its
own kind of model, and sends its scores on a public set. What comes back is everybody's opinion on its labels; with
distillation its model learns from it, and is better on pictures that nobody has trained on.

python examples/three_devices.py
"""

import turnout as to

DEVICES = {
    "camera": (("3", "5"), to.models.CNN((8, 16), kernel=3, padding=1)),
    "phone": (("5", "8"), to.models.MLP(32)),
    "watch": (("8", "9"), to.models.Logistic()),
}


def experiment() -> to.Experiment:
    labels, models = zip(*DEVICES.values(), strict=True)
    arriving = to.data.Arriving(to.data.Digits(), labels, per_label=4, public=60, names=tuple(DEVICES))
    return to.Experiment(
        world=to.World(arriving),
        algorithm=to.Scores(
            local=to.Local(to.Adam(lr=0.01, beta1=0.9, beta2=0.999), epochs=5, batch_size=4),
            models=dict(zip(DEVICES, models, strict=True)),
            distil=to.Distil(epochs=10, batch_size=20),
        ),
        rounds=8,
        runtime=to.InProcess(device="cpu", threads=1),
    )


def gains(run: to.Run) -> dict[str, tuple[float, float, float]]:
    """Of each device, mean over the rounds: its model alone, the scores it gets back, its model after learning them."""
    with run.records() as records:
        seen = records.clients()
    columns = ("local_accuracy", "consensus_accuracy", "distilled_accuracy")
    return {
        device: tuple(float(seen[name][seen["client"] == i].mean()) for name in columns)
        for i, device in enumerate(DEVICES)
    }


if __name__ == "__main__":
    run = to.run(experiment())
    for device, (alone, together, taught) in gains(run).items():
        print(f"{device}: alone {alone:.1%}, everybody's scores {together:.1%}, its own model after that {taught:.1%}")
    print(run.model(client=1))
