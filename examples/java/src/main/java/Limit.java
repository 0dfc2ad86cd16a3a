import com.google.protobuf.Duration;
import io.envoyproxy.envoy.extensions.common.ratelimit.v3.RateLimitDescriptor;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitRequest;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitResponse;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitResponse.Code;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitServiceGrpc;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.MetadataUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.logging.Level;
import java.util.logging.Logger;

/** Asks ratelimitd whether a request may pass: Limit DOMAIN KEY=VALUE [KEY=VALUE...] */
public final class Limit {
  private static final Logger LOG = Logger.getLogger("limit");

  public record Entry(String key, String value) {}

  /**
   * @param waitMillis how long to wait before an allowed request goes on
   * @param retryAfter seconds after which a denied request can be tried again
   * @param notLimited why there is no decision; null if there is one
   */
  public record Answer(boolean allowed, long waitMillis, long retryAfter, String notLimited) {}

  /** Asks ratelimitd. Make one for the whole process: threads share it, and its connection carries all calls. */
  public static final class Limits implements AutoCloseable {
    private static final Metadata.Key<String> DELAY =
        Metadata.Key.of("x-ratelimit-delay-ms", Metadata.ASCII_STRING_MARSHALLER);

    private final ManagedChannel channel;
    private final String domain;
    private final long deadlineMillis; // bounds the time that a decision adds to a request

    public Limits(String target, String domain, long deadlineMillis) {
      this.domain = domain;
      this.deadlineMillis = deadlineMillis;
      this.channel = ManagedChannelBuilder.forTarget(target)
          .usePlaintext()
          .defaultLoadBalancingPolicy("round_robin") // uses every address behind the name in turn
          .keepAliveTime(10, TimeUnit.SECONDS) // notices within 15 seconds that a connection is dead
          .keepAliveTimeout(5, TimeUnit.SECONDS)
          .keepAliveWithoutCalls(true)
          .build();
    }

    /**
     * Connects and loads classes while the process starts, with a call that no rule counts. The first request then need
     * not wait for that.
     */
    public void connect(long seconds) {
      try {
        RateLimitServiceGrpc.newBlockingStub(channel)
            .withWaitForReady()
            .withDeadlineAfter(seconds, TimeUnit.SECONDS)
            .shouldRateLimit(request(List.of(new Entry("connect", ""))));
      } catch (StatusRuntimeException e) {
        LOG.log(Level.WARNING, "no connection to ratelimitd yet: {0}", e.getStatus().getCode());
      }
    }

    public Answer ask(List<Entry> entries) {
      var headers = new AtomicReference<Metadata>();
      RateLimitResponse response;
      try {
        response = RateLimitServiceGrpc.newBlockingStub(channel)
            .withDeadlineAfter(deadlineMillis, TimeUnit.MILLISECONDS)
            .withInterceptors(MetadataUtils.newCaptureMetadataInterceptor(headers, new AtomicReference<>()))
            .shouldRateLimit(request(entries));
      } catch (StatusRuntimeException e) {
        // Fails open: a limit protects a service and must not take it down. To fail closed: false.
        String reason = e.getStatus().getCode() + ": " + e.getStatus().getDescription();
        LOG.log(Level.WARNING, "not limited: {0}", reason);
        return new Answer(true, 0, 0, reason);
      }
      if (response.getOverallCode() == Code.OVER_LIMIT) {
        return new Answer(false, 0, retryAfter(response), null);
      }
      String delay = headers.get().get(DELAY); // of a leaky bucket
      return new Answer(true, delay == null ? 0 : Long.parseLong(delay), 0, null);
    }

    private RateLimitRequest request(List<Entry> entries) {
      var descriptor = RateLimitDescriptor.newBuilder();
      for (var entry : entries) {
        descriptor.addEntries(RateLimitDescriptor.Entry.newBuilder().setKey(entry.key()).setValue(entry.value()));
      }
      return RateLimitRequest.newBuilder().setDomain(domain).addDescriptors(descriptor).build();
    }

    /** The seconds of the header Retry-After, if the domain has that header, else the time until the limit is reset. */
    private static long retryAfter(RateLimitResponse response) {
      for (var header : response.getResponseHeadersToAddList()) {
        if (header.getKey().equalsIgnoreCase("retry-after")) {
          return Long.parseLong(header.getValue());
        }
      }
      return response.getStatusesList().stream()
          .filter(status -> status.getCode() == Code.OVER_LIMIT)
          .mapToLong(status -> roundedUp(status.getDurationUntilReset()))
          .max()
          .orElse(0);
    }

    private static long roundedUp(Duration d) {
      return d.getNanos() > 0 ? d.getSeconds() + 1 : d.getSeconds();
    }

    @Override
    public void close() {
      channel.shutdownNow();
    }
  }

  public static void main(String[] args) throws InterruptedException {
    var entries = new ArrayList<Entry>();
    for (int i = 1; i < args.length; i++) {
      String[] parts = args[i].split("=", 2);
      if (parts.length == 2) {
        entries.add(new Entry(parts[0], parts[1]));
      }
    }
    if (entries.isEmpty() || entries.size() != args.length - 1) {
      System.err.println("usage: Limit DOMAIN KEY=VALUE [KEY=VALUE...]");
      System.exit(2);
    }
    var env = System.getenv();
    var deadline = Long.parseLong(env.getOrDefault("LIMIT_DEADLINE_MS", "20"));
    Answer answer;
    try (var limits = new Limits(env.getOrDefault("LIMIT_ADDRESS", "dns:///localhost:8081"), args[0], deadline)) {
      limits.connect(1);
      answer = limits.ask(entries);
    }
    if (!answer.allowed()) {
      System.out.println("denied, retry after " + answer.retryAfter() + " s");
      System.exit(1);
    }
    Thread.sleep(answer.waitMillis());
    System.out.println(answer.notLimited() == null ? "allowed" : "not limited: " + answer.notLimited());
  }
}
