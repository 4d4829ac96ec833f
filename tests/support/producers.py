"""The other side of the interchange protocols, implemented by hand: DLPack
capsules and function tables, lent and taken through ctypes, and objects that
have them.

Nothing is checked here, so that a producer can lie.
"""

import ctypes
import inspect

CPU, CUDA, CUDA_HOST = 1, 2, 3
VERSION = 1, 3
READ_ONLY, IS_COPIED, PADDED = 1, 2, 4
NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


TENSOR = ctypes.POINTER(Versioned)
SET_ERROR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p
)


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        # Called with the GIL released; the other functions need the GIL.
        (
            "allocate",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.POINTER(Tensor),
                ctypes.POINTER(TENSOR),
                ctypes.c_void_p,
                SET_ERROR,
            ),
        ),
        (
            "managed_from_object",
            ctypes.PYFUNCTYPE(
                ctypes.c_int, ctypes.py_object, ctypes.POINTER(TENSOR)
            ),
        ),
        (
            "managed_to_object",
            ctypes.PYFUNCTYPE(
                ctypes.c_int, TENSOR, ctypes.POINTER(ctypes.c_void_p)
            ),
        ),
        (
            "tensor_from_object",
            ctypes.PYFUNCTYPE(
                ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor)
            ),
        ),
        (
            "current_work_stream",
            ctypes.PYFUNCTYPE(
                ctypes.c_int,
                ctypes.c_int,
                ctypes.c_int32,
                ctypes.POINTER(ctypes.c_void_p),
            ),
        ),
    )


EXCHANGE = b"dlpack_exchange_api"
FORMS = {False: Managed, True: Versioned}
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def function(name, result, *arguments):
    """Return a function of Python's C API, with these types.  They are not
    those of an attribute of ctypes.pythonapi, which any library may change;
    numba.cuda does so for Py_DecRef."""
    api = ctypes.pythonapi  # noqa: TID251
    return ctypes.PYFUNCTYPE(result, *arguments)((name, api))


keep = function("Py_IncRef", None, ctypes.py_object)
drop = function("Py_DecRef", None, ctypes.c_void_p)
new = function(
    "PyCapsule_New",
    ctypes.py_object,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_void_p,
)
name_of = function("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
pointer_of = function(
    "PyCapsule_GetPointer",
    ctypes.c_void_p,
    ctypes.py_object,
    ctypes.c_char_p,
)
rename = function(
    "PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p
)
# These two functions take the capsule's address, because no new reference to a
# capsule may be created while it is destroyed.
is_valid = function(
    "PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p
)
pointer_at = function(
    "PyCapsule_GetPointer",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_char_p,
)

# {address of a lent tensor: its Loan, once for each deleter call that is still
# expected}
lent = {}


@DELETER
def delete(address):
    lent[address].pop().deleted += 1
    if not lent[address]:
        del lent[address]


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def destroy(capsule):
    for name in NAMES.values():
        if is_valid(capsule, name) and pointer_at(capsule, name) in lent:
            delete(pointer_at(capsule, name))


class Loan:
    """A tensor of bytes to lend.  Its fields are derived from the bytes,
    unless they are given.  `deleted` counts the calls to its deleter.  The
    Loan stays alive while the tensor is lent."""

    def __init__(
        self,
        content=bytes(range(16)),
        *,
        versioned=True,
        deleter=delete,
        major=1,
        flags=0,
        **fields,
    ):
        self.memory = (ctypes.c_char * len(content))(*content)
        self.deleted = 0
        self.versioned = versioned
        self.struct = FORMS[versioned]()
        if versioned:
            self.struct.major, self.struct.minor = major, VERSION[1]
            self.struct.flags = flags
        self.struct.deleter = ctypes.cast(deleter, ctypes.c_void_p)
        self.describe(**fields)

    def describe(self, **fields):
        """Set the given fields to their values, and derive the others from the
        bytes."""
        shape = fields.get("shape", [len(self.bytes)])
        fields = {
            "data": ctypes.addressof(self.memory),
            "device_type": CPU,
            "device_id": 0,
            "ndim": len(shape or ()),
            "code": 1,
            "bits": 8,
            "lanes": 1,
            "shape": shape,
            "strides": None,
            "byte_offset": 0,
            **fields,
        }
        for name, value in fields.items():
            if isinstance(value, list):
                value = (ctypes.c_int64 * len(value))(*value)
            setattr(self.struct.tensor, name, value)

    @property
    def bytes(self):
        return self.memory.raw

    def lend(self):
        """Return the tensor's address, and expect a call to its deleter."""
        address = ctypes.addressof(self.struct)
        if self.struct.deleter:
            lent.setdefault(address, []).append(self)
        return address

    def take_back(self):
        """Undo the latest lend().  The tensor was refused, so its deleter will
        not be called."""
        address = ctypes.addressof(self.struct)
        lent[address].pop()
        if not lent[address]:
            del lent[address]

    def capsule(self):
        return new(
            self.lend(),
            NAMES[self.versioned],
            ctypes.cast(destroy, ctypes.c_void_p),
        )


def place(block):
    """Return the fields that describe where a Buffer's memory is."""
    device_type, device_id = block.__dlpack_device__()
    return {
        "data": block.data_ptr(),
        "shape": [block.nbytes],
        "device_type": device_type,
        "device_id": device_id,
    }


class Producer:
    """An array of another library that lends a tensor.  `asked` has the
    arguments with which it was called, and `capsule` is the capsule that it
    returned.  The capsule is kept, because its destructor calls Python, which
    must not happen while an exception propagates."""

    def __init__(self, loan, device=None):
        tensor = loan.struct.tensor
        self.loan = loan
        self.device = device or (tensor.device_type, tensor.device_id)

    def __dlpack__(self, **options):
        self.asked = options
        self.capsule = self.loan.capsule()
        return self.capsule

    def __dlpack_device__(self):
        return self.device


class Table:
    """A table of functions that lends a tensor.  Its producer works on the
    stream with this handle.  The table's other fields may be given.  `asked`
    has the arguments with which its functions were called."""

    def __init__(self, loan, stream=None, **fields):
        def managed_from_object(array, tensor):
            self.asked.append(array)
            ctypes.cast(tensor, ctypes.POINTER(ctypes.c_void_p))[0] = (
                loan.lend()
            )
            return 0

        def current_work_stream(device_type, device_id, handle):
            self.asked.append((device_type, device_id))
            handle[0] = stream
            return 0

        self.asked = []
        self.struct = Exchange(*VERSION)
        fields = {
            "managed_from_object": managed_from_object,
            "current_work_stream": current_work_stream,
            **fields,
        }
        for name, value in fields.items():
            if inspect.isfunction(value):
                value = dict(Exchange._fields_)[name](value)
            setattr(self.struct, name, value)

    def type(self, *bases):
        """Return a type with this table."""
        capsule = new(ctypes.addressof(self.struct), EXCHANGE, None)
        return type("Array", bases, {"__dlpack_c_exchange_api__": capsule})

    def producer(self):
        """Return an object with this table and nothing else."""
        return self.type()()


def table_of(kind):
    """Return the table of functions of a type."""
    capsule = kind.__dlpack_c_exchange_api__
    return Exchange.from_address(pointer_of(capsule, EXCHANGE))


class Taken:
    """What another library takes from one of our capsules, or from a table."""

    def __init__(self, capsule=None, pointer=None):
        self.versioned = pointer is not None or (
            name_of(capsule) == NAMES[True]
        )
        if pointer is not None:
            self.struct = pointer.contents
        else:
            address = pointer_of(capsule, NAMES[self.versioned])
            self.struct = FORMS[self.versioned].from_address(address)
            rename(capsule, USED[self.versioned])
        self.tensor = self.struct.tensor

    @property
    def device(self):
        return self.tensor.device_type, self.tensor.device_id

    @property
    def nbytes(self):
        return self.tensor.shape[0]

    def tobytes(self):
        """Return the bytes of a tensor in host memory."""
        return ctypes.string_at(self.tensor.data, self.nbytes)

    def delete(self):
        """Give the tensor back, with the GIL released."""
        DELETER(self.struct.deleter)(ctypes.addressof(self.struct))
