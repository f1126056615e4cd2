//! An OTLP receiver of logs: gRPC as the published service definition has it, and HTTP with protocol buffers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use parking_lot::Mutex;
use prost::Message as _;
use tonic::{Request, Response, Status};

/// What a receiver got, in order; outlives it.
pub type Got = Arc<Mutex<Vec<ExportLogsServiceRequest>>>;

/// A receiver that is running, until it is dropped.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Stop {
    Grpc(Option<tokio::sync::oneshot::Sender<()>>),
    Http(Arc<AtomicBool>),
}

/// What both kinds of receiver do with a request.
#[derive(Clone, Debug)]
struct Desk {
    got: Got,
    taken: Range<usize>,
    asked: Arc<AtomicUsize>,
}

impl Desk {
    /// Takes a request, unless it is to be turned away.
    fn take(&self, request: ExportLogsServiceRequest) -> bool {
        let taken = self.taken.contains(&self.asked.fetch_add(1, Ordering::SeqCst));
        if taken {
            self.got.lock().push(request);
        }
        taken
    }
}

#[tonic::async_trait]
impl LogsService for Desk {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        if self.take(request.into_inner()) {
            Ok(Response::new(ExportLogsServiceResponse::default()))
        } else {
            Err(Status::unavailable("not now"))
        }
    }
}

impl Receiver {
    /// Starts a gRPC receiver at an address (port 0: any). Of the requests, counted from 0, it takes
    /// those `taken` names; the others are answered with `UNAVAILABLE`.
    #[must_use]
    pub fn grpc(at: SocketAddr, taken: Range<usize>, got: &Got) -> Self {
        let listener = listen(at);
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a listener that doesn't block");
        let desk = Desk { got: got.clone(), taken, asked: Arc::default() };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let incoming = tonic::transport::server::TcpIncoming::from(listener);
            let service = LogsServiceServer::new(desk);
            let server = tonic::transport::Server::builder().add_service(service);
            tokio::select! {
                served = server.serve_with_incoming(incoming) => served.expect("the receiver serves"),
                // Connections end at once, as when a receiver is killed.
                _ = stopped => {}
            }
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(serve);
        });
        Self { address, stop: Stop::Grpc(Some(stop)), thread: Some(thread) }
    }

    /// Starts an HTTP receiver at an address (port 0: any). Of the requests, counted from 0, it takes
    /// those `taken` names; the others are answered with 503.
    #[must_use]
    pub fn http(at: SocketAddr, taken: Range<usize>, got: &Got) -> Self {
        let listener = listen(at);
        let address = listener.local_addr().expect("an address");
        let desk = Desk { got: got.clone(), taken, asked: Arc::default() };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                if let Ok(connection) = connection
                    && let Err(error) = answer(&connection, &desk)
                {
                    panic!("receiver: {error}");
                }
            }
        });
        Self { address, stop: Stop::Http(stop), thread: Some(thread) }
    }

    /// Returns where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        match &mut self.stop {
            Stop::Grpc(stop) => drop(stop.take().map(|stop| stop.send(()))),
            Stop::Http(stop) => {
                stop.store(true, Ordering::SeqCst);
                drop(TcpStream::connect(self.address));
            }
        }
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// A port that was just left can be taken again only after a while, unless asked for like this; std does.
fn listen(at: SocketAddr) -> TcpListener {
    TcpListener::bind(at).expect("the receiver's address is free")
}

/// Answers one request and closes the connection.
fn answer(connection: &TcpStream, desk: &Desk) -> std::io::Result<()> {
    let bad = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    let mut reader = BufReader::new(connection);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    if first.trim_end() != "POST /v1/logs HTTP/1.1" {
        return Err(bad(&first));
    }
    let (mut length, mut typed) = (0, false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        match (name.to_ascii_lowercase().as_str(), value.trim()) {
            ("content-length", value) => length = value.parse().map_err(|_| bad("length"))?,
            ("content-type", value) => typed = value == "application/x-protobuf",
            _ => {}
        }
    }
    if !typed {
        return Err(bad("content type"));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request =
        ExportLogsServiceRequest::decode(&*body).map_err(|error| bad(&error.to_string()))?;
    let status = if desk.take(request) { "200 OK" } else { "503 Service Unavailable" };
    let mut connection = connection;
    write!(connection, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    connection.flush()
}
