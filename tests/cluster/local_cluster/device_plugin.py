"""Offers GPUs of this machine to the kubelet of one node, as NVIDIA's device plugin does, without NVIDIA's toolkit.

    python -m local_cluster.device_plugin SOCKETS INDEX...

SOCKETS is the kubelet's directory of device plugins, INDEX that of /dev/nvidiaINDEX. A container gets the device files
of its GPUs, and the driver's directory if the driver is not under /usr/lib.
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

log = logging.getLogger(__name__)

RESOURCE = "nvidia.com/gpu"
SOCKET = "rljob-gpu.sock"
KUBELET = "kubelet.sock"
SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""device files that belong to no single GPU"""
DRIVER = Path("/usr/local/nvidia")
PACKAGE = "v1beta1"
MESSAGES: Mapping[str, tuple[str, ...]] = {
    "Empty": (),
    "DevicePluginOptions": (),
    "PreStartContainerResponse": (),
    "RegisterRequest": ("version", "endpoint", "resource_name"),
    "Device": ("ID", "health"),
    "ListAndWatchResponse": ("*devices:Device",),
    "ContainerAllocateRequest": ("*devices_ids",),
    "AllocateRequest": ("*container_requests:ContainerAllocateRequest",),
    "Variable": ("key", "value"),
    "Mount": ("container_path", "host_path", "?read_only"),
    "DeviceSpec": ("container_path", "host_path", "permissions"),
    "ContainerAllocateResponse": ("*envs:Variable", "*mounts:Mount", "*devices:DeviceSpec"),
    "AllocateResponse": ("*container_responses:ContainerAllocateResponse",),
}
"""the part of the kubelet's API that is used, fields in the order of their numbers: `*` repeated, `?` a boolean,
`:TYPE` a message, otherwise a string. A map travels as its pairs
"""


def messages() -> Mapping[str, Any]:
    """Return the classes of the messages."""
    file = descriptor_pb2.FileDescriptorProto(name="rljob-device-plugin.proto", package=PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, text in enumerate(fields, start=1):
            named, _, kind = text.lstrip("*?").partition(":")
            label = kinds.LABEL_REPEATED if text.startswith("*") else kinds.LABEL_OPTIONAL
            field = message.field.add(name=named, number=number, label=label, type=kinds.TYPE_STRING)
            if kind:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            elif text.startswith("?"):
                field.type = kinds.TYPE_BOOL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


MESSAGE = messages()


def devices(indexes: Sequence[str]) -> Any:
    """Return the list of all GPUs, which are well."""
    listed = [MESSAGE["Device"](ID=f"gpu-{index}", health="Healthy") for index in indexes]
    return MESSAGE["ListAndWatchResponse"](devices=listed)


def allocation(request: Any, exists: Any = Path.exists) -> Any:
    """Return what each container of a request gets. `exists` says whether this machine has a path."""
    response = MESSAGE["AllocateResponse"]()
    for asked in request.container_requests:
        indexes = [each.removeprefix("gpu-") for each in asked.devices_ids]
        given = response.container_responses.add()
        given.envs.add(key="NVIDIA_VISIBLE_DEVICES", value=",".join(indexes))
        for path in (Path("/dev", name) for name in (*(f"nvidia{index}" for index in indexes), *SHARED)):
            if exists(path):
                given.devices.add(container_path=str(path), host_path=str(path), permissions="rw")
        if exists(DRIVER):
            given.mounts.add(container_path=str(DRIVER), host_path=str(DRIVER), read_only=True)
    return response


def serve(directory: Path, indexes: Sequence[str]) -> None:
    """Offer these GPUs until the process ends."""
    (directory / SOCKET).unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(f"{PACKAGE}.DevicePlugin", _methods(indexes))]
    )
    server.add_insecure_port(f"unix://{directory / SOCKET}")
    server.start()
    _register(directory)
    log.info("action=register resource=%s gpus=%s", RESOURCE, ",".join(indexes))
    server.wait_for_termination()


def _methods(indexes: Sequence[str]) -> Mapping[str, Any]:
    def watch(request: Any, context: Any) -> Iterator[Any]:
        yield devices(indexes)
        while context.is_active():  # the kubelet takes the end of the stream for the end of the GPUs
            time.sleep(1)

    def allocate(request: Any, context: Any) -> Any:
        response = allocation(request)
        log.info("action=allocate response=%s", " ".join(str(response).split()))
        return response

    return {
        "GetDevicePluginOptions": _unary(lambda request, context: MESSAGE["DevicePluginOptions"](), "Empty"),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(watch, MESSAGE["Empty"].FromString, _serialized),
        "Allocate": _unary(allocate, "AllocateRequest"),
        "PreStartContainer": _unary(lambda request, context: MESSAGE["PreStartContainerResponse"](), "Empty"),
    }


def _unary(method: Any, request: str) -> Any:
    return grpc.unary_unary_rpc_method_handler(method, MESSAGE[request].FromString, _serialized)


def _register(directory: Path) -> None:
    request = MESSAGE["RegisterRequest"](version=PACKAGE, endpoint=SOCKET, resource_name=RESOURCE)
    while not (directory / KUBELET).exists():
        time.sleep(0.1)
    with grpc.insecure_channel(f"unix://{directory / KUBELET}") as channel:
        register = channel.unary_unary(f"/{PACKAGE}.Registration/Register", _serialized, MESSAGE["Empty"].FromString)
        register(request, timeout=30, wait_for_ready=True)


def _serialized(message: Any) -> bytes:
    done: bytes = message.SerializeToString()
    return done


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    serve(Path(sys.argv[1]), sys.argv[2:])
