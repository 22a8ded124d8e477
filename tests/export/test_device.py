"""Which artefacts may use a GPU, and what a certificate says of the device."""

from export.artefacts import Artefact
from export.certificate.execution import device_notes, may_use_gpu, why_no_gpu

# What ONNX Runtime 1.26 writes where a library of CUDA is missing, and where there is no driver.
NO_LIBRARY = """\x1b[1;31m2026-01-02 03:04:05.6 [E:onnxruntime:Default, provider_bridge_ort.cc:2369 TryGetProvider] \
/src/provider_bridge_ort.cc:1962 Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library \
/lib/libonnxruntime_providers_cuda.so with error: libcublasLt.so.12: cannot open shared object file
\x1b[m
\x1b[0;93m2026-01-02 03:04:05.7 [W:onnxruntime:Default, onnxruntime_pybind_state.cc:1094 Create] Failed to create \
CUDAExecutionProvider. Require cuDNN 9.* and CUDA 12.*.\x1b[m
"""
NO_DRIVER = """*************** EP Error ***************
EP Error /src/cuda_call.cc:129 CUDA failure 35: CUDA driver version is insufficient when using ['CUDAExecutionProvider']
Falling back to ['CPUExecutionProvider'] and retrying.
"""
OTHER = "2026-01-02 03:04:05.6 [W:onnxruntime:, transformer_memcpy.cc:111 ApplyImpl] 4 Memcpy nodes are added\n"
# What is noted of a format and a precision that ran on a device, with this log; no note is "".
NOTES = [
    ("onnx", "float32", "GPU", "", "run on the GPU, with TF32 off"),
    ("onnx", "float16", "GPU", "", ""),
    ("onnx", "float32", "CPU", "", ""),
    ("onnx", "float16", "CPU", "", "run on the CPU, because the runtime found no GPU"),
    ("onnx", "float32", "CPU", NO_DRIVER, "run on the CPU, because the runtime could not use a GPU: /src/cuda"),
    ("onnx", "int8", "CPU", "", ""),
    ("tflite", "float16", "CPU", "", ""),
]


def test_a_certificate_says_which_device_was_used_and_why(tmp_path):
    told = why_no_gpu(OTHER + NO_LIBRARY)
    assert told.startswith("/src/provider_bridge_ort.cc:1962 Get() ") and told.endswith(
        " cannot open shared object file"
    )
    assert why_no_gpu(NO_LIBRARY[NO_LIBRARY.index("\n") :]).startswith("Failed to create CUDAExecutionProvider.")
    assert why_no_gpu(OTHER) == ""
    for format, precision, device, log, note in NOTES:
        artefact = Artefact(tmp_path, format, "ids", precision)
        found = [*device_notes(artefact, device, log)]
        assert [one[: len(note)] for one in found] == [note] * bool(note)
        assert may_use_gpu(artefact) == (precision != "int8" and format != "tflite")
