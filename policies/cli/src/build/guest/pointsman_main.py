"""Reports of a policy in Python: what it raises is told to the host, and `print` writes to its log.

`pointsman policy build` puts this file into every component. It exports the classes of `policy.py`.
"""

import io
import os
import sys
from types import CoroutineType

from componentize_py_types import Err
from wit_world.imports import log
from wit_world.imports.log import fault

# Most letters of a message, and of a line in the log.
LETTERS_MAX = 2000
# Most lines of a stack.
FRAMES_MAX = 16
# Most exceptions that one is told to be caused by.
CAUSES_MAX = 4
# Most lines that are kept for a host that is not there yet.
EARLY_MAX = 16

# What these raise as `Err` is an answer.
REFUSING = ("configure", "restore")

# The functions of each class that a policy may have.
FUNCTIONS = {EXPORTS}


class Lines(io.TextIOBase):
    """A stream that writes lines to the host's log."""

    # Lines from before there was a host, when the modules were loaded to make the component. Absent:
    # the host is there.
    early = []

    def __init__(self, level):
        self.level = level
        self.text = ""

    def writable(self):
        return True

    def write(self, text):
        *lines, self.text = (self.text + text).split("\n")
        if len(self.text) > LETTERS_MAX:
            self.end()
        for line in lines:
            self.line(line)
        return len(text)

    def line(self, line):
        line = line[:LETTERS_MAX]
        if not line:
            return
        if Lines.early is None:
            log.write(self.level, line)
        elif len(Lines.early) < EARLY_MAX:
            Lines.early.append((self.level, line))

    def end(self):
        line, self.text = self.text, ""
        self.line(line)


sys.stdout = OUT = Lines(log.Level.INFO)
sys.stderr = ERR = Lines(log.Level.WARN)


def begin():
    """The host is there from an instance's first call on."""
    lines, Lines.early = Lines.early, None
    for level, line in lines or ():
        log.write(level, line)


def end():
    """The end of a call is the end of a line, too."""
    OUT.end()
    ERR.end()


def reported(own, functions):
    """The class of a policy, each of whose functions reports what it raises."""
    calls = {}
    for name in functions:
        function = getattr(own, name, None)
        # Of a class that lacks one no instance can be made, and that is told.
        if function and not getattr(function, "__isabstractmethod__", False):
            calls[name] = call(name, function)
    return type(own.__name__, (own,), calls)


def call(name, function):
    # Holds only if the answer cannot be passed on, which is past what Python sees.
    misfit = f"answered `{name}` with what its interface does not have\n  in {name}"
    is_refusing = name in REFUSING

    def calling(self, *given):
        if Lines.early is not None:
            begin()
        try:
            answer = function(self, *given)
        except BaseException as raised:
            end()
            if is_refusing and isinstance(raised, Err):
                raise
            fail(told(raised))
        if OUT.text or ERR.text:
            end()
        if type(answer) is CoroutineType:
            fail(f"answered `{name}` with a coroutine: a policy answers at once\n  in {name}")
        fault(misfit)
        return answer

    return calling


def fail(why):
    """Ends the call, and says why."""
    fault(why)
    os.abort()


def told(raised):
    lines = []
    word = "raised "
    while raised is not None and len(lines) < CAUSES_MAX:
        stack = frames(raised)
        place = f" at {stack[0][0]}" if stack else ""
        said = str(raised)
        said = f"{word}{type(raised).__name__}{place}" + (f": {said}" if said else "")
        shown = [f"  in {name} at {place}" for place, name in stack[:FRAMES_MAX]]
        if len(stack) > FRAMES_MAX:
            shown.append(f"  and {len(stack) - FRAMES_MAX} more")
        lines.append("\n".join([said[:LETTERS_MAX], *shown]))
        word = "  caused by "
        context = None if raised.__suppress_context__ else raised.__context__
        raised = raised.__cause__ or context
    return "\n".join(lines)


def frames(raised):
    """The author's functions in a stack, innermost first, each with its place."""
    found = []
    step = raised.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        # Folders that the component was made of are numbered; the standard library has another name.
        _, _, path = code.co_filename.partition("/")
        folder, _, path = path.partition("/")
        if code.co_filename != __file__ and folder.isdigit():
            found.append((f"{path}:{step.tb_lineno}", code.co_qualname))
        step = step.tb_next
    return found[::-1]


try:
    # Last, since what it prints goes to the log already.
    import policy
except BaseException:
    # To whoever makes the component, not to a log.
    sys.stderr = sys.__stderr__
    raise

for class_name, names in FUNCTIONS.items():
    if class_name in vars(policy):
        globals()[class_name] = reported(vars(policy)[class_name], names)


def __getattr__(name):
    raise AttributeError(f"policy.py has no class {name}, although world.wit exports that interface")
