"""The client of interop_test.go in Python. Arguments: the service's address, and that of one that cannot decide."""

import collections
import concurrent.futures
import sys
import threading

import grpc
from envoy.service.ratelimit.v3 import rls_pb2 as rls
from envoy.service.ratelimit.v3 import rls_pb2_grpc as rls_services
from grpc_health.v1 import health_pb2 as health
from grpc_health.v1 import health_pb2_grpc as health_services

NAME = "python"
PATIENCE = 60  # seconds, for calls that shall succeed


def ask(key, *values):
    """A request with one descriptor for each value."""
    request = rls.RateLimitRequest(domain="interop")
    for value in values:
        request.descriptors.add().entries.add(key=key, value=value)
    return request


def outcome(call, *args, **kwargs):
    """The answer's code, or the status of a call that failed."""
    try:
        answer = call(*args, timeout=kwargs.pop("timeout", PATIENCE), **kwargs)
        return rls.RateLimitResponse.Code.Name(answer.overall_code), answer
    except grpc.RpcError as error:
        return error.code().name, error


def say(step, text):
    print(f"{step}: {text}", flush=True)


def one_by_one(channel, stub, checker):
    say("unary", outcome(stub.ShouldRateLimit, ask("open", NAME))[0])

    code, error = outcome(stub.ShouldRateLimit, rls.RateLimitRequest())
    say("invalid", f"{code} {error.details()}")

    method = "/envoy.service.ratelimit.v3.RateLimitService/NoSuchMethod"
    unknown = channel.unary_unary(method, rls.RateLimitRequest.SerializeToString, rls.RateLimitResponse.FromString)
    say("unknown method", outcome(unknown, ask("open", NAME))[0])

    say("gzip", outcome(stub.ShouldRateLimit, ask("open", NAME * 1000), compression=grpc.Compression.Gzip)[0])

    metadata = [("x-long", "v" * 8000), ("x-some-bin", bytes(range(256)))]
    say("metadata", outcome(stub.ShouldRateLimit, ask("open", NAME), metadata=metadata)[0])

    code, answer = outcome(stub.ShouldRateLimit, ask("open", *(f"{NAME} {i}" + "v" * 4096 for i in range(256))))
    say("1 MiB in 256 descriptors", f"{code} {len(answer.statuses)}")

    def checked(service):
        try:
            answer = checker.Check(health.HealthCheckRequest(service=service), timeout=PATIENCE)
            return health.HealthCheckResponse.ServingStatus.Name(answer.status)
        except grpc.RpcError as error:
            return error.code().name

    say("health", checked(""))
    say("health of another service", checked("no.such.Service"))


def at_once(stub):
    calls = [stub.ShouldRateLimit.future(ask("some", NAME), timeout=PATIENCE) for _ in range(1000)]
    counts = collections.Counter(outcome(lambda timeout, c=c: c.result())[0] for c in calls)
    say("1,000 at once", ", ".join(f"{code} {n}" for code, n in sorted(counts.items())))


def without_answer(stub):
    """Redis begins to hang when a line comes in. After a second of silence the service takes it for dead."""
    sys.stdin.readline()
    late = stub.ShouldRateLimit.future(ask("open", NAME), timeout=0.3)
    cancelled = stub.ShouldRateLimit.future(ask("open", NAME), timeout=PATIENCE)
    threading.Timer(0.1, cancelled.cancel).start()
    say("deadline", outcome(lambda timeout: late.result())[0])
    try:
        say("cancel", outcome(lambda timeout: cancelled.result())[0])
    except grpc.FutureCancelledError:
        say("cancel", "CANCELLED")


def drain(stub, checker):
    """Calls from 16 threads until a line comes in. Meanwhile the service is replaced."""
    watch = checker.Watch(health.HealthCheckRequest())
    say("watch", health.HealthCheckResponse.ServingStatus.Name(next(watch).status))

    stop = threading.Event()

    def caller():
        counts = collections.Counter()
        while not stop.is_set():
            counts[outcome(stub.ShouldRateLimit, ask("load", NAME))[0]] += 1
        return counts

    with concurrent.futures.ThreadPoolExecutor() as pool:
        callers = [pool.submit(caller) for _ in range(16)]
        say("watch", health.HealthCheckResponse.ServingStatus.Name(next(watch).status))
        watch.cancel()
        sys.stdin.readline()
        stop.set()
        counts = sum((c.result() for c in callers), collections.Counter())
    say("load", ", ".join(f"{code} {n}" for code, n in sorted(counts.items())))


def main():
    address, stuck = sys.argv[1:]
    options = [("grpc.max_metadata_size", 1 << 20)]
    with grpc.insecure_channel(address, options) as channel, grpc.insecure_channel(stuck) as other:
        stub = rls_services.RateLimitServiceStub(channel)
        checker = health_services.HealthStub(channel)
        one_by_one(channel, stub, checker)
        at_once(stub)
        without_answer(rls_services.RateLimitServiceStub(other))
        drain(stub, checker)


main()
