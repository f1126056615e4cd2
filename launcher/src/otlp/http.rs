//! OTLP over HTTP, `http/protobuf`.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use prost::Message as _;

use super::{Taken, Target, Trouble};

const PATH: &str = "/v1/logs";
const TYPE: &str = "application/x-protobuf";
/// An answer longer than this isn't one.
const LONGEST_ANSWER: u64 = 1 << 20;

pub(super) struct Client {
    agent: ureq::Agent,
    url: String,
    headers: Vec<(String, String)>,
}

impl Client {
    pub(super) fn new(target: &Target) -> Result<Self, String> {
        let base = target.endpoint.trim_end_matches('/');
        let url = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        let uri: ureq::http::Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(format!("`{url}` isn't an http or https address"));
        }
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(target.timeout))
            .http_status_as_error(false)
            .user_agent(concat!("stockade/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Ok(Self { agent, url, headers: target.headers.clone() })
    }

    pub(super) fn send(&mut self, request: &ExportLogsServiceRequest) -> Result<Taken, Trouble> {
        let mut post = self.agent.post(&self.url).header("Content-Type", TYPE);
        for (name, value) in &self.headers {
            post = post.header(name, value);
        }
        let mut response = post.send(&request.encode_to_vec()).map_err(|error| {
            let why = error.to_string();
            if matches!(error, ureq::Error::Http(_) | ureq::Error::BadUri(_)) {
                Trouble::Never(why)
            } else {
                Trouble::Again { why, after: None }
            }
        })?;
        let status = response.status();
        let after = response
            .headers()
            .get("Retry-After")
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let body = response.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec();
        let why = || format!("{} answered {status}", self.url);
        match status.as_u16() {
            200..300 => {
                let body =
                    body.map_err(|error| Trouble::Again { why: error.to_string(), after })?;
                let answer = ExportLogsServiceResponse::decode(&*body)
                    .map_err(|error| Trouble::Never(format!("{}: {error}", self.url)))?;
                Ok(answer.into())
            }
            // The answers that the specification calls retryable.
            429 | 502 | 503 | 504 => Err(Trouble::Again { why: why(), after }),
            _ => Err(Trouble::Never(why())),
        }
    }
}
