//! Asks ratelimitd whether a request may pass: limit DOMAIN KEY=VALUE [KEY=VALUE...]

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

enum Answer {
    /// The request passes when it has waited so long.
    Allowed { wait: Duration },
    /// The request can be tried again after this time.
    Denied { retry_after: Duration },
    /// There is no decision, and this is why.
    NotLimited(Status),
}

/// Asks ratelimitd. Make one for the whole process: its clones share a connection, which carries all calls.
#[derive(Clone)]
struct Limits {
    client: RateLimitServiceClient<Channel>,
    domain: String,
    deadline: Duration, // bounds the time that a decision adds to a request
}

impl Limits {
    fn new(
        address: String,
        domain: String,
        deadline: Duration,
    ) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::from_shared(address)?
            .connect_timeout(Duration::from_secs(1))
            // Notices within 15 seconds that the connection is dead.
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(true)
            .connect_lazy();
        Ok(Limits {
            client: RateLimitServiceClient::new(channel),
            domain,
            deadline,
        })
    }

    /// Connects while the process starts, with a call that no rule counts. The first request then need not wait for that.
    async fn connect(&self, within: Duration) {
        if let Err(status) = self.call(&[("connect", "")], within).await {
            eprintln!("no connection to ratelimitd yet: {status}");
        }
    }

    async fn ask(&self, entries: &[(&str, &str)]) -> Answer {
        let response = match self.call(entries, self.deadline).await {
            Ok(response) => response,
            Err(status) => {
                // Fails open: a limit protects a service and must not take it down. To fail closed, answer Denied.
                eprintln!("not limited: {status}");
                return Answer::NotLimited(status);
            }
        };
        if response.get_ref().overall_code() == Code::OverLimit {
            return Answer::Denied {
                retry_after: retry_after(response.get_ref()),
            };
        }
        let delay = response.metadata().get("x-ratelimit-delay-ms"); // of a leaky bucket
        let delay = delay
            .and_then(|ms| ms.to_str().ok()?.parse().ok())
            .unwrap_or(0);
        Answer::Allowed {
            wait: Duration::from_millis(delay),
        }
    }

    async fn call(
        &self,
        entries: &[(&str, &str)],
        within: Duration,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let entry = |&(key, value): &(&str, &str)| Entry {
            key: key.into(),
            value: value.into(),
        };
        let descriptor = RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            ..Default::default()
        };
        let mut request = Request::new(RateLimitRequest {
            domain: self.domain.clone(),
            descriptors: vec![descriptor],
            hits_addend: 0,
        });
        request.set_timeout(within); // so that the service knows it
        let mut client = self.client.clone();
        // The timeout of a request does not cover the time that connecting takes; this one does.
        match tokio::time::timeout(within, client.should_rate_limit(request)).await {
            Ok(result) => result,
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }
}

/// The seconds of the header Retry-After, if the domain has that header, else the time until the limit is reset.
fn retry_after(response: &RateLimitResponse) -> Duration {
    let header = response
        .response_headers_to_add
        .iter()
        .find(|h| h.key.eq_ignore_ascii_case("retry-after"));
    if let Some(seconds) = header.and_then(|h| h.value.parse().ok()) {
        return Duration::from_secs(seconds);
    }
    let over = response
        .statuses
        .iter()
        .filter(|s| s.code() == Code::OverLimit);
    let seconds = over
        .filter_map(|s| s.duration_until_reset.as_ref())
        .map(|d| d.seconds + i64::from(d.nanos > 0))
        .max();
    Duration::from_secs(seconds.unwrap_or(0) as u64)
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let entries: Vec<_> = args
        .iter()
        .skip(1)
        .filter_map(|arg| arg.split_once('='))
        .collect();
    if entries.is_empty() || entries.len() != args.len() - 1 {
        eprintln!("usage: limit DOMAIN KEY=VALUE [KEY=VALUE...]");
        return ExitCode::from(2);
    }
    let address = env::var("LIMIT_ADDRESS").unwrap_or("http://localhost:8081".into());
    let deadline = env::var("LIMIT_DEADLINE_MS")
        .ok()
        .and_then(|ms| ms.parse().ok())
        .unwrap_or(20);
    let limits = match Limits::new(address, args[0].clone(), Duration::from_millis(deadline)) {
        Ok(limits) => limits,
        Err(error) => {
            eprintln!("LIMIT_ADDRESS: {error}");
            return ExitCode::from(2);
        }
    };
    limits.connect(Duration::from_secs(1)).await;
    match limits.ask(&entries).await {
        Answer::Denied { retry_after } => {
            println!("denied, retry after {} s", retry_after.as_secs());
            return ExitCode::FAILURE;
        }
        Answer::Allowed { wait } => {
            tokio::time::sleep(wait).await;
            println!("allowed");
        }
        Answer::NotLimited(status) => {
            println!("not limited: {:?}: {}", status.code(), status.message())
        }
    }
    ExitCode::SUCCESS
}
