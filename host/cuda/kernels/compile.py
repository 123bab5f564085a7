"""Compiles the kernels beside it to PTX, with NVRTC: compile.py LIBRARY, PTX to standard output.

LIBRARY is libnvrtc.so. A GPU or its driver is not needed.
"""

import ctypes
import pathlib
import sys

OPTIONS = [b"--gpu-architecture=compute_80", b"--std=c++17"]


def check(library, result):
    if result != 0:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise SystemExit(library.nvrtcGetErrorString(result).decode())


def text(library, program, size_of, get):
    size = ctypes.c_size_t()
    check(library, size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(library, get(program, buffer))
    return buffer.value.decode()


def strings(values):
    return (ctypes.c_char_p * len(values))(*values)


def main():
    library = ctypes.CDLL(sys.argv[1])
    folder = pathlib.Path(__file__).parent
    sources = sorted(folder.glob("*.cu"))
    files = sources + sorted(folder.glob("*.cuh"))
    names = [file.name.encode() for file in files]
    contents = [file.read_bytes() for file in files]
    source = b"".join(b'#include "%s"\n' % file.name.encode() for file in sources)
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source, b"kernels.cu", len(files), strings(contents), strings(names)
    )
    check(library, created)
    compiled = library.nvrtcCompileProgram(program, len(OPTIONS), strings(OPTIONS))
    log = text(library, program, library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog)
    sys.stderr.write(log)
    check(library, compiled)
    ptx = text(library, program, library.nvrtcGetPTXSize, library.nvrtcGetPTX)
    # The compiler leaves blanks where it inserts assembly.
    sys.stdout.write("\n".join(line.rstrip() for line in ptx.split("\n")))


main()
