"""TensorFlow's start-up lines, as opposed to the lines that users should see."""

from tfdist.launch.failures.startup_lines import is_startup_line

ABSL = "0000 00:00:1795387111.731098    7492 "
OLD = "2026-11-22 22:38:31.731098: "


def test_lines_that_tensorflow_prints_in_every_run_are_startup_lines() -> None:
    for line in (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        f"I{ABSL}cudart_stub.cc:31] Could not find cuda drivers on your machine",
        f"I{ABSL}grpc_server_lib.cc:467] Started server with target: grpc://127.0.0.1:25055",
        "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow",
        f"E{ABSL}cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed call to "
        "cuInit: UNKNOWN ERROR (303)",
        f"W{ABSL}local_rendezvous.cc:412] Local rendezvous is aborting with status: ABORTED: "
        "Cleanup 138062810671441917 [type.googleapis.com/tensorflow.DerivedStatus='']",
        f"W{ABSL}dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized "
        "because the dataset does not implement the AsGraphDefInternal() method needed",
        "\t [[{{node MultiDeviceIteratorGetNextFromShard}}]]",
        f"E{ABSL}master_session.cc:1972] Cleanup partition error: UNAVAILABLE: failed to connect "
        "to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:22181: Connection refused",
        f"W{ABSL}master_session.cc:2166] UNAVAILABLE: failed to connect to all addresses; last",
        "Additional GRPC error information from remote target /job:worker/replica:0/task:1 while "
        "calling /tensorflow.WorkerService/CleanupGraph:",
        ":UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:",
        f"W{ABSL}queue_base.cc:286] tfdist_687086158_from_0_to_1: Skipping cancelled dequeue "
        "attempt with queue not closed",
        f"{OLD}I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.",
        f"{OLD}E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:467] Unable to register "
        "cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been",
        f"{OLD}W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not "
        "find TensorRT",
    ):
        assert is_startup_line(line), line


def test_all_other_warnings_and_errors_are_for_users() -> None:
    for line in (
        f"W{ABSL}gpu_device.cc:2430] Cannot dlopen some GPU libraries.",
        f"E{ABSL}cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        f"W{ABSL}local_rendezvous.cc:412] Local rendezvous is aborting with status: "
        "INVALID_ARGUMENT: logits and labels must have the same shape",
        f"W{ABSL}local_rendezvous.cc:412] Local rendezvous is aborting with status: UNAVAILABLE: "
        "failed to connect to all addresses",
        f"F{ABSL}cuda_platform.cc:52] failed call to cuInit: UNKNOWN ERROR (303)",
        "INFO:tensorflow:loss = 0.3, step = 100 (1.234 sec)",
        "I0000 is the name of a sample",
        "",
    ):
        assert not is_startup_line(line), line
