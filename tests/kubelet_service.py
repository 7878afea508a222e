"""A gRPC server with the kubelet's list of Pods: ``kubelet_service.py SOCKET``; the answer is its first line, in hexadecimal, and an empty one refuses the call."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]

if __name__ == "__main__":
    answer = bytes.fromhex(sys.stdin.readline())

    def listed(_request: bytes, context: Any) -> bytes:
        """Answer, or refuse with a status that comes in headers alone."""
        if not answer:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return answer

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"List": grpc.unary_unary_rpc_method_handler(listed)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    print("listens", flush=True)  # noqa: T201  the test waits for it
    sys.stdin.read()
