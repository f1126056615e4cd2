//! Events sent to an OpenTelemetry receiver (O4).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use stockade_tests::{Got, Receiver, World, as_root_and_user};

type Start = fn(SocketAddr, Range<usize>, &Got) -> Receiver;
const KINDS: [(&str, Start); 2] = [("http", Receiver::http), ("grpc", Receiver::grpc)];

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn records(got: &Got) -> Vec<LogRecord> {
    let requests = got.lock();
    let resources = requests.iter().flat_map(|request| &request.resource_logs);
    resources.flat_map(|of| &of.scope_logs).flat_map(|of| of.log_records.clone()).collect()
}

fn attribute<'r>(record: &'r LogRecord, key: &str) -> Option<&'r Value> {
    record.attributes.iter().find(|one| one.key == key)?.value.as_ref()?.value.as_ref()
}

fn text<'r>(record: &'r LogRecord, key: &str) -> &'r str {
    match attribute(record, key) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?} in {record:#?}"),
    }
}

/// How often each event came, by its number.
fn counts(got: &Got) -> BTreeMap<i64, usize> {
    let mut counts = BTreeMap::new();
    for record in records(got) {
        let Some(Value::IntValue(seq)) = attribute(&record, "stockade.seq") else {
            panic!("{record:#?}");
        };
        *counts.entry(*seq).or_default() += 1;
    }
    counts
}

/// Every event of the last session, once.
fn once(world: &World) -> BTreeMap<i64, usize> {
    let output = world.stockade().args(["log", "--run", "all", "--json"]).run();
    output.assert_success();
    let seq = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).unwrap()["seq"].as_i64().unwrap()
    };
    output.stdout().lines().map(|line| (seq(line), 1)).collect()
}

fn assert_once(got: &Got, wanted: &BTreeMap<i64, usize>, what: &str) {
    let got = counts(got);
    let all: BTreeSet<_> = got.keys().chain(wanted.keys()).collect();
    let wrong: Vec<_> = all.into_iter().filter(|seq| got.get(seq) != wanted.get(seq)).collect();
    let first = &wrong[..wrong.len().min(10)];
    assert!(wrong.is_empty(), "{what}: {} events not once, such as {first:?}", wrong.len());
}

fn export(world: &World, kind: &str, at: SocketAddr) -> stockade_tests::Invocation {
    let url = format!("http://{at}");
    world.stockade().args(["log", "export", "--protocol", kind, "--json", "--otlp", &url])
}

as_root_and_user! {
    /// Each event comes once, with the conventions' names; a second export has nothing to send.
    fn each_event_comes_once(world) {
        world.write("secret", "x");
        let script = "for i in $(seq 400); do echo $i > f$i; done; cat f1; cat secret; rm f2; mkdir \"$(printf 'd\\377')\"; true";
        let output = world.run(&["-q", "--deny-read", "secret"]).args(["sh", "-c", script]).run();
        output.assert_success();
        let wanted = once(world);
        assert!(wanted.len() > 600, "several requests: {}", wanted.len());
        for (kind, start) in KINDS {
            let got = Got::default();
            let receiver = start(anywhere(), 2..usize::MAX, &got);
            let output = export(world, kind, receiver.address()).run();
            output.assert_success();
            assert_once(&got, &wanted, kind);
            let sent: serde_json::Value = serde_json::from_str(&output.stdout()).unwrap();
            assert_eq!(sent["sent"], wanted.len(), "{kind}");

            let records = records(&got);
            let denied: Vec<_> =
                records.iter().filter(|one| text(one, "stockade.outcome") == "denied").collect();
            let [denied] = *denied else { panic!("{denied:#?}") };
            assert_eq!(denied.severity_text, "WARN");
            assert_eq!(denied.event_name, "stockade.read");
            assert_eq!(text(denied, "file.path"), world.workspace().join("secret").to_str().unwrap());
            assert_eq!(text(denied, "file.name"), "secret");
            assert_eq!(text(denied, "error.type"), "EACCES");
            assert_eq!(text(denied, "stockade.rule"), "read-denied");
            assert_eq!(text(denied, "process.executable.name"), "cat");
            let made = records.iter().find(|one| text(one, "stockade.operation") == "mkdir").unwrap();
            let name = attribute(made, "file.name");
            assert!(matches!(name, Some(Value::BytesValue(bytes)) if bytes == b"d\xff"), "{name:?}");

            let again = export(world, kind, receiver.address()).run();
            again.assert_success();
            assert_once(&got, &wanted, "again");
        }
    }

    /// A receiver that goes away in the middle and comes back gets the rest.
    fn a_receiver_may_restart(world) {
        let script = "for i in $(seq 400); do echo $i > f$i; done";
        world.run(&["-q"]).args(["sh", "-c", script]).run().assert_success();
        let wanted = once(world);
        for (kind, start) in KINDS {
            let got = Got::default();
            let first = start(anywhere(), 0..1, &got);
            let address = first.address();
            let mut running = export(world, kind, address).spawn();
            // It takes one request, and is gone before it takes another.
            running.wait_until("a request is taken", || !got.lock().is_empty());
            drop(first);
            let second = start(address, 3..usize::MAX, &got);
            let output = running.wait();
            drop(second);
            output.assert_success();
            assert_once(&got, &wanted, kind);
        }
    }

    /// What can't be delivered is said, and kept for the next time.
    fn nothing_is_lost_without_a_receiver(world) {
        world.run(&["-q"]).args(["sh", "-c", "echo x > f"]).run().assert_success();
        for (kind, start) in KINDS {
            let got = Got::default();
            let receiver = start(anywhere(), 0..0, &got);
            let address = receiver.address();
            drop(receiver);
            let output = export(world, kind, address).args(["--patience", "1ms"]).run();
            output.assert_code(125);
            assert!(output.stderr().contains("RUNNER_FAILED"), "{}", output.stderr());
            let receiver = start(address, 0..usize::MAX, &got);
            export(world, kind, receiver.address()).run().assert_success();
            assert_once(&got, &once(world), kind);
        }
    }
}
