//! The client of interop_test.go in Rust, with tonic. Arguments: the service's address, and that of one that cannot decide.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, AsciiMetadataKey, BinaryMetadataKey, BinaryMetadataValue, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_prost::ProstCodec;

const NAME: &str = "rust";
const PATIENCE: Duration = Duration::from_secs(60); // for calls that shall succeed

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A request with one descriptor for each value.
fn ask(key: &str, values: impl IntoIterator<Item = String>) -> RateLimitRequest {
    let descriptor = |value| RateLimitDescriptor { entries: vec![Entry { key: key.into(), value }], ..Default::default() };
    RateLimitRequest { domain: "interop".into(), descriptors: values.into_iter().map(descriptor).collect(), hits_addend: 0 }
}

fn one(key: &str) -> RateLimitRequest {
    ask(key, [NAME.to_string()])
}

fn with_timeout<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

#[derive(Clone)]
struct Client {
    channel: Channel,
    service: RateLimitServiceClient<Channel>,
}

impl Client {
    fn new(address: &str) -> Result<Self, Error> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
        Ok(Client { service: RateLimitServiceClient::new(channel.clone()), channel })
    }

    async fn limit(&mut self, request: Request<RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        self.service.should_rate_limit(request).await.map(Response::into_inner)
    }

    /// Calls a method that the service does not have.
    async fn call_unknown(&self, request: Request<RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let path = PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/NoSuchMethod");
        let answer: Result<Response<RateLimitResponse>, Status> = client.unary(request, path, ProstCodec::default()).await;
        answer.map(Response::into_inner)
    }

    async fn check(&self, service: &str) -> Result<String, Status> {
        let request = with_timeout(HealthCheckRequest { service: service.into() }, PATIENCE);
        let answer = HealthClient::new(self.channel.clone()).check(request).await?;
        Ok(serving(answer.get_ref()))
    }

    async fn watch(&self) -> Result<Streaming<HealthCheckResponse>, Error> {
        let request = HealthCheckRequest { service: String::new() };
        Ok(HealthClient::new(self.channel.clone()).watch(request).await?.into_inner())
    }
}

fn serving(answer: &HealthCheckResponse) -> String {
    ServingStatus::try_from(answer.status).unwrap_or_default().as_str_name().into()
}

fn name(code: Code) -> String {
    match code {
        Code::InvalidArgument => "INVALID_ARGUMENT".into(),
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED".into(),
        Code::NotFound => "NOT_FOUND".into(),
        other => format!("{other:?}").to_uppercase(),
    }
}

/// The answer's code, or the status of a call that failed.
fn outcome(result: &Result<RateLimitResponse, Status>) -> String {
    match result {
        Ok(answer) => answer.overall_code().as_str_name().into(),
        Err(status) => name(status.code()),
    }
}

async fn tally(calls: Vec<tokio::task::JoinHandle<Vec<String>>>) -> Result<String, Error> {
    let mut counts = BTreeMap::new();
    for call in calls {
        for outcome in call.await? {
            *counts.entry(outcome).or_insert(0) += 1;
        }
    }
    Ok(counts.iter().map(|(code, n)| format!("{code} {n}")).collect::<Vec<_>>().join(", "))
}

async fn one_by_one(client: &mut Client) -> Result<(), Error> {
    println!("unary: {}", outcome(&client.limit(with_timeout(one("open"), PATIENCE)).await));

    match client.limit(with_timeout(RateLimitRequest::default(), PATIENCE)).await {
        Err(status) => println!("invalid: {} {}", name(status.code()), status.message()),
        Ok(_) => println!("invalid: OK"),
    }

    println!("unknown method: {}", outcome(&client.call_unknown(with_timeout(one("open"), PATIENCE)).await));

    let mut zipping = client.clone();
    zipping.service = zipping.service.send_compressed(CompressionEncoding::Gzip).accept_compressed(CompressionEncoding::Gzip);
    let request = ask("open", [NAME.repeat(1000)]);
    println!("gzip: {}", outcome(&zipping.limit(with_timeout(request, PATIENCE)).await));

    let mut request = with_timeout(one("open"), PATIENCE);
    let long: MetadataValue<Ascii> = "v".repeat(8000).parse()?;
    let bytes: Vec<u8> = (0..=255).collect();
    request.metadata_mut().insert(AsciiMetadataKey::from_static("x-long"), long);
    request.metadata_mut().insert_bin(BinaryMetadataKey::from_static("x-some-bin"), BinaryMetadataValue::from_bytes(&bytes));
    println!("metadata: {}", outcome(&client.limit(request).await));

    let request = ask("open", (0..256).map(|i| format!("{NAME} {i}") + &"v".repeat(4096)));
    let many = client.limit(with_timeout(request, PATIENCE)).await;
    println!("1 MiB in 256 descriptors: {} {}", outcome(&many), many.map_or(0, |answer| answer.statuses.len()));

    for (step, service) in [("health", ""), ("health of another service", "no.such.Service")] {
        println!("{step}: {}", client.check(service).await.unwrap_or_else(|status| name(status.code())));
    }
    Ok(())
}

async fn at_once(client: &Client) -> Result<(), Error> {
    let calls = (0..1000).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move { vec![outcome(&client.limit(with_timeout(one("some"), PATIENCE)).await)] })
    });
    println!("1,000 at once: {}", tally(calls.collect()).await?);
    Ok(())
}

/// Redis begins to hang when a line comes in. After a second of silence the service takes it for dead.
async fn without_answer(client: &mut Client, input: &mut Lines<BufReader<Stdin>>) -> Result<(), Error> {
    input.next_line().await?;
    let mut other = client.clone();
    let late = client.limit(with_timeout(one("open"), Duration::from_millis(300)));
    // A call is cancelled by dropping it: there is no status then.
    let dropped = tokio::time::timeout(Duration::from_millis(100), cancelled(&mut other));
    let (late, dropped) = tokio::join!(late, dropped);
    // tonic has its own timer for the deadline, and calls it Cancelled when that is first.
    let code = match &late {
        Err(status) if status.code() == Code::Cancelled && status.message() == "Timeout expired" => "DEADLINE_EXCEEDED".into(),
        other => outcome(other),
    };
    println!("deadline: {code}");
    println!("cancel: {}", dropped.unwrap_or_else(|_| "CANCELLED".into()));
    Ok(())
}

fn cancelled(client: &mut Client) -> impl Future<Output = String> {
    async { outcome(&client.limit(with_timeout(one("open"), PATIENCE)).await) }
}

/// Whether the connection was leaving when a call was to be sent on it. Other libraries then repeat the call, tonic leaves
/// that to its caller. A repeated call that the service has counted already would be counted twice, and the test would see it.
fn not_sent(status: &Status) -> bool {
    std::error::Error::source(status).is_some_and(|cause| cause.is::<tonic::transport::Error>())
}

/// Makes 16 calls at a time until a line comes in. Meanwhile the service is replaced.
async fn drain(client: &mut Client, input: &mut Lines<BufReader<Stdin>>) -> Result<(), Error> {
    let mut watch = client.watch().await?;
    println!("watch: {}", watch.message().await?.map_or("".into(), |answer| serving(&answer)));

    let stopped = Arc::new(AtomicBool::new(false));
    let callers = (0..16).map(|_| {
        let (mut client, stopped) = (client.clone(), stopped.clone());
        tokio::spawn(async move {
            let mut outcomes = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let mut result = client.limit(with_timeout(one("load"), PATIENCE)).await;
                while let Err(status) = &result
                    && not_sent(status)
                {
                    result = client.limit(with_timeout(one("load"), PATIENCE)).await;
                }
                outcomes.push(outcome(&result));
            }
            outcomes
        })
    });
    let callers = callers.collect();
    println!("watch: {}", watch.message().await?.map_or("".into(), |answer| serving(&answer)));
    input.next_line().await?;
    stopped.store(true, Ordering::Relaxed);
    println!("load: {}", tally(callers).await?);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let addresses: Vec<String> = std::env::args().skip(1).collect();
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let mut client = Client::new(&addresses[0])?;
    one_by_one(&mut client).await?;
    at_once(&client).await?;
    without_answer(&mut Client::new(&addresses[1])?, &mut input).await?;
    drain(&mut client, &mut input).await
}
