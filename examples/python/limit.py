"""Asks ratelimitd whether a request may pass: limit.py DOMAIN KEY=VALUE [KEY=VALUE...]"""

import dataclasses
import json
import logging
import math
import os
import sys
import time

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

OPTIONS = [
    # Uses every address behind the name in turn.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
    # Notices within 15 seconds that a connection is dead.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]


@dataclasses.dataclass
class Answer:
    allowed: bool
    wait: float = 0  # seconds to wait before an allowed request goes on
    retry_after: int = 0  # seconds after which a denied request can be tried again
    not_limited: str = ""  # why there is no decision


class Limits:
    """Asks ratelimitd. Make one for the whole process: threads share it, and its connection carries all calls."""

    def __init__(self, address, domain, deadline):
        self.domain = domain
        self.deadline = deadline  # seconds; bounds the time that a decision adds to a request
        self.stub = rls_pb2_grpc.RateLimitServiceStub(grpc.insecure_channel(address, OPTIONS))

    def connect(self, seconds):
        """Connects while the process starts, with a call that no rule counts. The first request then need not wait for that."""
        try:
            self.stub.ShouldRateLimit(self.request([("connect", "")]), timeout=seconds, wait_for_ready=True)
        except grpc.RpcError as error:
            logging.warning("no connection to ratelimitd yet: %s", error.code().name)

    def ask(self, entries):
        try:
            response, call = self.stub.ShouldRateLimit.with_call(self.request(entries), timeout=self.deadline)
        except grpc.RpcError as error:
            # Fails open: a limit protects a service and must not take it down. To fail closed: allowed=False.
            reason = f"{error.code().name}: {error.details()}"
            logging.warning("not limited: %s", reason)
            return Answer(allowed=True, not_limited=reason)
        if response.overall_code == rls_pb2.RateLimitResponse.OVER_LIMIT:
            return Answer(allowed=False, retry_after=retry_after(response))
        delay = dict(call.initial_metadata()).get("x-ratelimit-delay-ms", "0")  # of a leaky bucket
        return Answer(allowed=True, wait=int(delay) / 1000)

    def request(self, entries):
        request = rls_pb2.RateLimitRequest(domain=self.domain)
        descriptor = request.descriptors.add()
        for key, value in entries:
            descriptor.entries.add(key=key, value=value)
        return request


def retry_after(response):
    """The seconds of the header Retry-After, if the domain has that header, else the time until the limit is reset."""
    for header in response.response_headers_to_add:
        if header.key.lower() == "retry-after":
            return int(header.value)
    over = (s for s in response.statuses if s.code == rls_pb2.RateLimitResponse.OVER_LIMIT)
    return max((math.ceil(s.duration_until_reset.ToTimedelta().total_seconds()) for s in over), default=0)


def main():
    if len(sys.argv) < 3 or not all("=" in arg for arg in sys.argv[2:]):
        print("usage: limit.py DOMAIN KEY=VALUE [KEY=VALUE...]", file=sys.stderr)
        sys.exit(2)
    domain, entries = sys.argv[1], [arg.split("=", 1) for arg in sys.argv[2:]]
    address = os.environ.get("LIMIT_ADDRESS", "dns:///localhost:8081")
    limits = Limits(address, domain, deadline=float(os.environ.get("LIMIT_DEADLINE_MS", "20")) / 1000)
    limits.connect(seconds=1)
    answer = limits.ask(entries)
    if not answer.allowed:
        print(f"denied, retry after {answer.retry_after} s")
        sys.exit(1)
    time.sleep(answer.wait)
    print(f"not limited: {answer.not_limited}" if answer.not_limited else "allowed")


if __name__ == "__main__":
    main()
