import com.google.common.util.concurrent.ListenableFuture;
import io.envoyproxy.envoy.extensions.common.ratelimit.v3.RateLimitDescriptor;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitRequest;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitResponse;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitServiceGrpc;
import io.grpc.CallOptions;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthCheckResponse;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** The client of interop_test.go in Java. Arguments: the service's address, and that of one that cannot decide. */
public final class Client {
  private static final String NAME = "java";
  private static final long PATIENCE = 60; // seconds, for calls that shall succeed

  private final BufferedReader in = new BufferedReader(new InputStreamReader(System.in));

  public static void main(String[] args) throws Exception {
    var channel = ManagedChannelBuilder.forTarget(args[0]).usePlaintext().build();
    var stuck = ManagedChannelBuilder.forTarget(args[1]).usePlaintext().build();
    var client = new Client();
    client.oneByOne(channel);
    client.atOnce(channel);
    client.withoutAnswer(stuck);
    client.drain(channel);
    channel.shutdownNow();
    stuck.shutdownNow();
  }

  private static void say(String step, String text) {
    System.out.println(step + ": " + text);
  }

  private static RateLimitServiceGrpc.RateLimitServiceBlockingStub patient(ManagedChannel channel) {
    return RateLimitServiceGrpc.newBlockingStub(channel).withDeadlineAfter(PATIENCE, TimeUnit.SECONDS);
  }

  private static RateLimitServiceGrpc.RateLimitServiceFutureStub patientFuture(ManagedChannel channel) {
    return RateLimitServiceGrpc.newFutureStub(channel).withDeadlineAfter(PATIENCE, TimeUnit.SECONDS);
  }

  /** A request with one descriptor for each value. */
  private static RateLimitRequest ask(String key, List<String> values) {
    var request = RateLimitRequest.newBuilder().setDomain("interop");
    for (var value : values) {
      var entry = RateLimitDescriptor.Entry.newBuilder().setKey(key).setValue(value);
      request.addDescriptors(RateLimitDescriptor.newBuilder().addEntries(entry));
    }
    return request.build();
  }

  private static RateLimitRequest ask(String key) {
    return ask(key, List.of(NAME));
  }

  private interface Call {
    RateLimitResponse run() throws Exception;
  }

  /** The answer's code, or the status of a call that failed. */
  private static String outcome(Call call) throws Exception {
    try {
      return call.run().getOverallCode().name();
    } catch (StatusRuntimeException e) {
      return e.getStatus().getCode().name();
    } catch (ExecutionException e) {
      return Status.fromThrowable(e.getCause()).getCode().name();
    } catch (CancellationException e) {
      return "CANCELLED";
    }
  }

  private static String tally(List<String> outcomes) {
    Map<String, Long> counts = outcomes.stream().collect(Collectors.groupingBy(o -> o, TreeMap::new, Collectors.counting()));
    return counts.entrySet().stream().map(e -> e.getKey() + " " + e.getValue()).collect(Collectors.joining(", "));
  }

  private void oneByOne(ManagedChannel channel) throws Exception {
    say("unary", outcome(() -> patient(channel).shouldRateLimit(ask("open"))));

    try {
      patient(channel).shouldRateLimit(RateLimitRequest.getDefaultInstance());
      say("invalid", "OK");
    } catch (StatusRuntimeException e) {
      say("invalid", e.getStatus().getCode() + " " + e.getStatus().getDescription());
    }

    var unknown = RateLimitServiceGrpc.getShouldRateLimitMethod().toBuilder()
        .setFullMethodName("envoy.service.ratelimit.v3.RateLimitService/NoSuchMethod").build();
    say("unknown method", outcome(() -> ClientCalls.blockingUnaryCall(channel, unknown, CallOptions.DEFAULT, ask("open"))));

    say("gzip", outcome(() -> patient(channel).withCompression("gzip").shouldRateLimit(ask("open", List.of(NAME.repeat(1000))))));

    var metadata = new Metadata();
    metadata.put(Metadata.Key.of("x-long", Metadata.ASCII_STRING_MARSHALLER), "v".repeat(8000));
    var bytes = new byte[256];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (byte) i;
    }
    metadata.put(Metadata.Key.of("x-some-bin", Metadata.BINARY_BYTE_MARSHALLER), bytes);
    var with = patient(channel).withInterceptors(MetadataUtils.newAttachHeadersInterceptor(metadata));
    say("metadata", outcome(() -> with.shouldRateLimit(ask("open"))));

    var values = IntStream.range(0, 256).mapToObj(i -> NAME + " " + i + "v".repeat(4096)).collect(Collectors.toList());
    var many = patient(channel).shouldRateLimit(ask("open", values));
    say("1 MiB in 256 descriptors", many.getOverallCode() + " " + many.getStatusesCount());

    say("health", checked(channel, ""));
    say("health of another service", checked(channel, "no.such.Service"));
  }

  private static String checked(ManagedChannel channel, String service) {
    try {
      var stub = HealthGrpc.newBlockingStub(channel).withDeadlineAfter(PATIENCE, TimeUnit.SECONDS);
      return stub.check(HealthCheckRequest.newBuilder().setService(service).build()).getStatus().name();
    } catch (StatusRuntimeException e) {
      return e.getStatus().getCode().name();
    }
  }

  private void atOnce(ManagedChannel channel) throws Exception {
    var calls = new ArrayList<ListenableFuture<RateLimitResponse>>();
    for (int i = 0; i < 1000; i++) {
      calls.add(patientFuture(channel).shouldRateLimit(ask("some")));
    }
    var outcomes = new ArrayList<String>();
    for (var call : calls) {
      outcomes.add(outcome(call::get));
    }
    say("1,000 at once", tally(outcomes));
  }

  /** Redis begins to hang when a line comes in. After a second of silence the service takes it for dead. */
  private void withoutAnswer(ManagedChannel channel) throws Exception {
    in.readLine();
    var late = RateLimitServiceGrpc.newFutureStub(channel).withDeadlineAfter(300, TimeUnit.MILLISECONDS).shouldRateLimit(ask("open"));
    var cancelled = patientFuture(channel).shouldRateLimit(ask("open"));
    var timer = Executors.newSingleThreadScheduledExecutor();
    timer.schedule(() -> cancelled.cancel(true), 100, TimeUnit.MILLISECONDS);
    say("deadline", outcome(late::get));
    say("cancel", outcome(cancelled::get));
    timer.shutdown();
  }

  /** Makes 16 calls at a time until a line comes in. Meanwhile the service is replaced. */
  private void drain(ManagedChannel channel) throws Exception {
    Iterator<HealthCheckResponse> watch = HealthGrpc.newBlockingStub(channel).watch(HealthCheckRequest.getDefaultInstance());
    say("watch", watch.next().getStatus().name());

    var stopped = new AtomicBoolean();
    var pool = Executors.newFixedThreadPool(16);
    var callers = new ArrayList<Future<List<String>>>();
    for (int i = 0; i < 16; i++) {
      callers.add(pool.submit(() -> {
        var outcomes = new ArrayList<String>();
        while (!stopped.get()) {
          outcomes.add(outcome(() -> patient(channel).shouldRateLimit(ask("load"))));
        }
        return outcomes;
      }));
    }
    say("watch", watch.next().getStatus().name());
    in.readLine();
    stopped.set(true);
    var outcomes = new ArrayList<String>();
    for (var caller : callers) {
      outcomes.addAll(caller.get());
    }
    pool.shutdown();
    say("load", tally(outcomes));
  }
}
