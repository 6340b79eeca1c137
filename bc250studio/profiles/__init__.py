"""What the user wants: a profile, read from TOML, strict, every value with its origin.

``load`` applies defaults < profile file < command line and remembers where each value came from;
``dump`` writes the frozen, complete copy that a run keeps. A profile holds no machine path except the
data's and the model's.
"""

from bc250studio.profiles.profile import (
    Profile,
    Resolved,
    available,
    dump,
    from_text,
    load,
    locate,
)

__all__ = ["Profile", "Resolved", "available", "dump", "from_text", "load", "locate"]
