//! OTLP over gRPC.

use std::str::FromStr as _;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request};

use super::{Taken, Target, Trouble};

pub(super) struct Client {
    runtime: tokio::runtime::Runtime,
    service: LogsServiceClient<Channel>,
    headers: MetadataMap,
}

impl Client {
    pub(super) fn new(target: &Target) -> Result<Self, String> {
        let bad = |error: &dyn std::error::Error| format!("{}: {error}", target.endpoint);
        let mut endpoint = Endpoint::from_shared(target.endpoint.clone())
            .map_err(|error| bad(&error))?
            .timeout(target.timeout)
            .connect_timeout(target.timeout);
        match endpoint.uri().scheme_str() {
            Some("http") => {}
            Some("https") => {
                let tls = ClientTlsConfig::new().with_webpki_roots();
                endpoint = endpoint.tls_config(tls).map_err(|error| bad(&error))?;
            }
            Some(_) | None => {
                return Err(format!("`{}` isn't an http or https address", target.endpoint));
            }
        }
        let mut headers = MetadataMap::new();
        for (name, value) in &target.headers {
            let key = MetadataKey::<Ascii>::from_str(&name.to_ascii_lowercase())
                .map_err(|error| format!("header `{name}`: {error}"))?;
            let value = MetadataValue::from_str(value)
                .map_err(|error| format!("header `{name}`: {error}"))?;
            headers.append(key, value);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let channel = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        Ok(Self { runtime, service: LogsServiceClient::new(channel), headers })
    }

    pub(super) fn send(&mut self, request: ExportLogsServiceRequest) -> Result<Taken, Trouble> {
        let mut request = Request::new(request);
        *request.metadata_mut() = self.headers.clone();
        match self.runtime.block_on(self.service.export(request)) {
            Ok(response) => Ok(response.into_inner().into()),
            Err(status) => {
                let why = format!("{:?}: {}", status.code(), status.message());
                // The codes that the specification calls retryable; a lost connection is `Unavailable` or `Unknown` with
                // a source.
                let again = matches!(
                    status.code(),
                    Code::Cancelled
                        | Code::DeadlineExceeded
                        | Code::ResourceExhausted
                        | Code::Aborted
                        | Code::OutOfRange
                        | Code::Unavailable
                        | Code::DataLoss
                ) || std::error::Error::source(&status).is_some();
                Err(if again { Trouble::Again { why, after: None } } else { Trouble::Never(why) })
            }
        }
    }
}
