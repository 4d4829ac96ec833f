"""Kernels for tests, written in PTX and launched through ctypes: one that
writes late, one that tells where it runs, and some that break the device.

python tests/support/kernels.py prints the PTX, for ptxas to check.

pystreams does not know of these kernels, and does not order them.  Arguments
are not checked: a wrong address or stream crashes the process.
"""

import ctypes

PTX = """\
.version 6.0
.target sm_50
.address_size 64

.extern .func __assertfail(
    .param .b64 message, .param .b64 file, .param .b32 line,
    .param .b64 function, .param .b64 size);

.global .align 1 .b8 claim[6] = {102, 97, 108, 115, 101, 0};

.visible .entry store(.param .u64 address, .param .u32 byte)
{
    .reg .b64 %address;
    .reg .b32 %byte;
    ld.param.u64 %address, [address];
    ld.param.u32 %byte, [byte];
    st.global.u8 [%address], %byte;
    ret;
}

.visible .entry place(.param .u64 address, .param .u64 nanoseconds)
{
    .reg .pred %on;
    .reg .b64 %address, %now, %until, %offset;
    .reg .b32 %block, %multiprocessor;
    ld.param.u64 %address, [address];
    ld.param.u64 %until, [nanoseconds];
    mov.u64 %now, %globaltimer;
    add.u64 %until, %until, %now;
wait:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %on, %now, %until;
    @%on bra wait;
    mov.u32 %block, %ctaid.x;
    mul.wide.u32 %offset, %block, 4;
    add.u64 %address, %address, %offset;
    mov.u32 %multiprocessor, %smid;
    st.global.u32 [%address], %multiprocessor;
    ret;
}

.visible .entry refute()
{
    .reg .b64 %text;
    .param .b64 message;
    .param .b64 file;
    .param .b32 line;
    .param .b64 function;
    .param .b64 size;
    mov.u64 %text, claim;
    cvta.global.u64 %text, %text;
    st.param.b64 [message], %text;
    st.param.b64 [file], %text;
    st.param.b32 [line], 7;
    st.param.b64 [function], %text;
    st.param.b64 [size], 1;
    call __assertfail, (message, file, line, function, size);
    ret;
}

.visible .entry fill_late(
    .param .u64 address, .param .u64 nbytes, .param .u32 byte,
    .param .u64 nanoseconds)
{
    .reg .pred %on;
    .reg .b64 %address, %end, %step, %now, %until;
    .reg .b32 %byte, %threads;
    ld.param.u64 %address, [address];
    ld.param.u64 %end, [nbytes];
    ld.param.u32 %byte, [byte];
    ld.param.u64 %until, [nanoseconds];
    mov.u64 %now, %globaltimer;
    add.u64 %until, %until, %now;
wait:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %on, %now, %until;
    @%on bra wait;
    add.u64 %end, %end, %address;
    mov.u32 %threads, %tid.x;
    cvt.u64.u32 %step, %threads;
    add.u64 %address, %address, %step;
    mov.u32 %threads, %ntid.x;
    cvt.u64.u32 %step, %threads;
fill:
    setp.lt.u64 %on, %address, %end;
    @!%on bra done;
    st.global.u8 [%address], %byte;
    add.u64 %address, %address, %step;
    bra fill;
done:
    ret;
}
"""

THREADS = 256
NOWHERE = 0x10


class Kernels:
    """The kernels, loaded by the driver.  A stream is the raw handle of a
    stream on the current device, or 0."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", ctypes.c_uint(0))
        library = ctypes.c_void_p()
        self.call(
            "cuLibraryLoadData",
            ctypes.byref(library),
            PTX.encode(),
            *(None, None, ctypes.c_uint(0)),
            *(None, None, ctypes.c_uint(0)),
        )
        self.loaded = {}
        for name in ("store", "place", "refute", "fill_late"):
            kernel = self.loaded[name] = ctypes.c_void_p()
            self.call(
                "cuLibraryGetKernel",
                ctypes.byref(kernel),
                library,
                name.encode(),
            )

    def call(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    def launch(self, stream, name, *arguments, threads=1, blocks=1):
        places = (ctypes.c_void_p * max(1, len(arguments)))(
            *(ctypes.addressof(argument) for argument in arguments)
        )
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        self.call(
            "cuLaunchKernel",
            self.loaded[name],
            *(ctypes.c_uint(blocks), one, one),
            *(ctypes.c_uint(threads), one, one),
            none,
            ctypes.c_void_p(stream),
            places,
            None,
        )

    def store(self, stream, address, byte):
        self.launch(
            stream, "store", ctypes.c_uint64(address), ctypes.c_uint32(byte)
        )

    def place(self, stream, address, blocks, microseconds):
        """Write the number of each block's multiprocessor.  Each block takes
        this long, and leaves room for one more block on its multiprocessor."""
        self.launch(
            stream,
            "place",
            ctypes.c_uint64(address),
            ctypes.c_uint64(microseconds * 1000),
            threads=1024,
            blocks=blocks,
        )

    def fill_late(self, stream, address, nbytes, byte, milliseconds):
        """Write nbytes, this long after the kernel has begun."""
        self.launch(
            stream,
            "fill_late",
            ctypes.c_uint64(address),
            ctypes.c_uint64(nbytes),
            ctypes.c_uint32(byte),
            ctypes.c_uint64(milliseconds * 1_000_000),
            threads=THREADS,
        )

    def read(self, stream, address, nbytes):
        """Return the first and the last byte as a copy on the stream sees
        them.  Waits for that copy."""
        host = ctypes.create_string_buffer(nbytes)
        self.call(
            "cuMemcpyDtoHAsync_v2",
            host,
            ctypes.c_uint64(address),
            ctypes.c_size_t(nbytes),
            ctypes.c_void_p(stream),
        )
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))
        return host.raw[0], host.raw[-1]

    def fault(self, stream):
        """Write to an unmapped address: cudaErrorIllegalAddress."""
        self.store(stream, NOWHERE, 1)

    def refute(self, stream):
        """Fail an assert(): cudaErrorAssert."""
        self.launch(stream, "refute")


if __name__ == "__main__":
    print(PTX, end="")
