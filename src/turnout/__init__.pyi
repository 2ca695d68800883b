from turnout.public import *  # noqa: F403

__version__: str
