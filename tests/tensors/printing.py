"""Writes printing.txt: arrays and what NumPy prints for them. Run with NumPy 2.4: python printing.py > printing.txt"""

import numpy as np

rng = np.random.default_rng(12)
inf, nan = np.inf, np.nan
cases = []


def case(values, dtype, shape=None):
    a = np.array(values, dtype=dtype)
    cases.append(a.reshape(shape) if shape is not None else a)


for dtype in (np.float32, np.float64):
    case(1.5, dtype)
    for v in (0.0, -0.0, 1.0, 1e-5, 1e-4, 9.9e15, 1e16, 1.25e17, 123456.789, 0.1, 1 / 3, nan, inf, -inf, -3e30):
        case(v, dtype)
    case([], dtype)
    case([], dtype, (2, 0, 3))
    case([1, 2, 3], dtype)
    case([1.0, -2.5, 1 / 3, 10.0], dtype, (2, 2))
    case([0.0, -0.0], dtype)
    case([1e-5, 1.0], dtype)
    case([1e-4, 1e-1], dtype)
    case([1e-4, 0.10001], dtype)
    case([1e6, 1e5], dtype)
    case([999999.0, 1000.0], dtype)
    case([1e8, 1.0], dtype)
    case([99999999.0, 1e6], dtype)
    case([1e10, 1.5, -2.25], dtype)
    case([1e10, 1.0], dtype)
    case([1e-20, 1e30], dtype)
    case([nan, 1.0, 2.5], dtype)
    case([inf, -1.0, 2.5], dtype)
    case([-inf, 1.0], dtype)
    case([nan, nan], dtype)
    case([inf, -inf, nan], dtype)
    case([inf, 1e20, nan], dtype)
    case([-inf, 1e-20, -1.0], dtype)
    case([nan, 123.456], dtype)
    case([1001.0, 1.0], dtype)
    case([1000.0, 1.0], dtype)
    case([0.5, 0.25, 0.125, 0.0625, 2 ** -13], dtype)
    case(np.arange(12) / 7, dtype, (2, 2, 3))
    case(np.arange(40), dtype)
    case(np.arange(60) / 3, dtype)
    case(np.arange(1000) / 8, dtype)
    case(np.arange(1001) / 8, dtype)
    case(np.arange(2000) / 8, dtype, (50, 40))
    case(np.arange(4096), dtype, (4, 4, 4, 64))
    case(np.arange(3000), dtype, (1000, 3))
    case(np.arange(3000), dtype, (3, 1000))
    case(np.arange(1200), dtype, (6, 200))
    case(np.arange(1400), dtype, (7, 200))
    case(np.arange(8), dtype, (1, 2, 1, 4))
    for scale in (1e-6, 1e-3, 1.0, 30.0, 1e3, 1e5, 1e7, 1e12):
        case(rng.standard_normal(7) * scale, dtype)
        case(rng.standard_normal(12) * scale, dtype, (3, 4))
    case(10.0 ** rng.uniform(-12, 12, 9), dtype)
    case(rng.standard_normal(300), dtype, (2, 3, 50))
    case(np.ldexp(1.0, np.arange(-20, 0)), dtype)
case([1e100, 1.0], np.float64)
case([1e-300, -1e300, 1e5], np.float64)
case([5e-324, 1.7976931348623157e308], np.float64)
case([1e-45, 3.4028235e38], np.float32)
case([16777216, 16777217, 33554432], np.float32)
for v in (0.0, 1.0, 0.1, 65504.0, 6e-8, 1e-4, 0.33325, 1234.0, nan, -inf):
    case(v, np.float16)
case([0.1, 0.2, 0.3], np.float16)
case([1.0, 1000.0], np.float16)
case([999.0, 1.0], np.float16)
case([65504.0, 0.5], np.float16)
case([6e-8, 6.1e-5, 1e-4], np.float16)
case(rng.standard_normal(30), np.float16, (5, 6))
case(2.0 ** np.arange(-24, 16), np.float16)
case(2.0 ** np.arange(-24, 16) * (1 - 2 ** -11), np.float16)
for dtype in (np.int64, np.int32, np.int8, np.uint8):
    case(7, dtype)
    case([1, 20, 100], dtype)
    case(np.arange(100) % 100, dtype)
    case(np.arange(3000) % 120, dtype, (50, 60))
case([-1, 5, -100], np.int64)
case([np.iinfo(np.int64).min, np.iinfo(np.int64).max, 0], np.int64)
case([-128, 127], np.int8)
case(rng.integers(-(10**12), 10**12, 20), np.int64, (4, 5))
case(True, np.bool_)
case(False, np.bool_)
case([True, False], np.bool_)
case([True, True], np.bool_, (2, 1))
case(np.arange(1200) % 3 == 0, np.bool_, (30, 40))
case(np.arange(40) % 3 == 0, np.bool_)

names = {"float32": "f32", "float64": "f64", "float16": "f16", "int64": "i64", "int32": "i32", "int8": "i8",
         "uint8": "u8", "bool": "bool"}
print(f"# NumPy {np.__version__}: dtype, shape, the elements' bytes; then the text; then a line of ===")
for a in cases:
    shape = ",".join(map(str, a.shape))
    n = a.size
    # Long runs are named instead of spelled out.
    form = "hex " + a.astype(a.dtype.newbyteorder("<")).tobytes().hex()
    run, flat = np.arange(n), a.ravel()
    forms = {
        "f": [(f"range {d}", run / d) for d in (1, 3, 7, 8)],
        "i": [(f"mod {m}", run % m) for m in (100, 120)],
        "u": [(f"mod {m}", run % m) for m in (100, 120)],
        "b": [("every 3", run % 3 == 0)],
    }
    for name, values in forms[a.dtype.kind]:
        if n > 30 and np.array_equal(flat, values.astype(a.dtype)):
            form = name
            break
    print(f"{names[a.dtype.name]} [{shape}] {form}")
    print(a)
    print("===")
