//! Real servers outside, and their real clients inside: no message carries an effect out (L11).

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::process::Signal;
use stockade_tests::{World, as_root_and_user};

use crate::program;

const BACKENDS: [&str; 2] = ["bwrap", "landlock"];

/// Has each client try it under each back end, then unconfined, where it must work. `client` is a shell command that has a
/// server outside make the file `$1`.
fn try_clients(world: &World, clients: &[(&str, String)]) {
    for (name, client) in clients {
        let target = |place: &str| world.outside().join(format!("{name}-{place}"));
        for backend in BACKENDS {
            let output = world
                .run(&["-q", "--backend", backend])
                .args(["sh", "-c", client, "sh"])
                .arg(target(backend))
                .run();
            assert_ne!(
                output.code,
                0,
                "{name} under {backend}: {} {}",
                output.stdout(),
                output.stderr()
            );
            assert_ne!(output.code, 127, "{name}: {}", output.stderr());
        }
        // The servers take one request after the other: what would have come of the first has come by now.
        let output = world.native("sh").args(["-c", client, "sh"]).arg(target("unconfined")).run();
        assert!(target("unconfined").exists(), "{name}: {} {}", output.stdout(), output.stderr());
        for backend in BACKENDS {
            assert!(!target(backend).exists(), "{name} acted outside, under {backend}");
        }
    }
}

/// A service for each place: started by its name, it makes a file.
fn write_services(world: &World, names: &[&str]) -> PathBuf {
    let services = world.outside().join("services");
    fs::create_dir(&services).unwrap();
    for place in BACKENDS.iter().chain(&["unconfined"]) {
        for name in names {
            let target = world.outside().join(format!("{name}-{place}"));
            // It takes no name on the bus, and the client is told so when it ends.
            let text = format!(
                "[D-BUS Service]\nName=org.stockade.{}.{place}\nExec=/bin/sh -c '/usr/bin/touch {}; exit 1'\n",
                name.replace('-', "_"),
                target.display()
            );
            fs::write(
                services.join(format!("org.stockade.{}.{place}.service", name.replace('-', "_"))),
                text,
            )
            .unwrap();
        }
    }
    services
}

/// Listens where a container daemon would, and does what it is asked for: starts a process.
fn serve_containers(path: &Path) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = String::new();
            while !request.ends_with("\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).unwrap_or(0) == 0 {
                    break;
                }
                request.push(char::from(byte[0]));
            }
            let Some(path) = request.strip_prefix("POST /containers/create?touch=") else { return };
            let path = path.split(' ').next().unwrap();
            assert!(Command::new("touch").arg(path).status().unwrap().success());
            // A client needn't wait for the answer.
            let _gone = stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
        }
    })
}

as_root_and_user! {
    /// L11: a message bus that starts services, reached by path and by its abstract name, with both usual clients.
    fn a_bus_starts_no_service(world) {
        if !["dbus-daemon", "dbus-send", "gdbus", "bwrap"].iter().all(|program| world.has(program)) {
            return;
        }
        let services = write_services(world, &["send", "send-abstract", "gdbus"]);
        let bus = world.outside().join("bus");
        let abstract_name = format!("stockade-{}", bus.display());
        let config = world.outside().join("bus.conf");
        fs::write(&config, format!(
            "<busconfig><type>session</type><listen>unix:path={}</listen><listen>unix:abstract={abstract_name}</listen>\
             <servicedir>{}</servicedir><policy context=\"default\"><allow user=\"*\"/><allow send_destination=\"*\" eavesdrop=\"true\"/><allow eavesdrop=\"true\"/><allow own=\"*\"/></policy></busconfig>",
            bus.display(), services.display()
        )).unwrap();
        let mut daemon = world.native("dbus-daemon").args(["--nofork", "--nopidfile"])
            .arg(format!("--config-file={}", config.display())).spawn();
        daemon.wait_until("the bus is there", || bus.exists());
        let send = |address: &str| format!(
            "p=org.stockade.$(basename $1 | tr - _); p=${{p%_*}}.${{p##*_}}; dbus-send --bus={address} --print-reply --dest=$p / org.freedesktop.DBus.Peer.Ping; test -e $1"
        );
        let path = format!("unix:path={}", bus.display());
        let call = format!(
            "p=org.stockade.$(basename $1 | tr - _); p=${{p%_*}}.${{p##*_}}; gdbus call --address {path} --dest $p --object-path / --method org.freedesktop.DBus.Peer.Ping; test -e $1"
        );
        try_clients(world, &[
            ("send", send(&path)),
            ("send-abstract", send(&format!("unix:abstract={abstract_name}"))),
            ("gdbus", call),
        ]);
        daemon.signal(Signal::TERM);
        drop(daemon.wait());
    }

    /// L11: a container daemon's socket, by which anything can be started as root outside.
    fn a_container_daemon_starts_nothing(world) {
        if !world.has("bwrap") {
            return;
        }
        let socket = world.outside().join("docker.sock");
        let server = serve_containers(&socket);
        let script = format!(
            "import http.client, socket, sys\nc = http.client.HTTPConnection('docker')\nc.sock = socket.socket(socket.AF_UNIX)\n\
             c.sock.connect('{}')\nc.request('POST', '/containers/create?touch=' + sys.argv[1])\nprint(c.getresponse().status)",
            socket.display()
        );
        try_clients(world, &[("docker", format!("/usr/bin/python3 -I -c \"{script}\" $1"))]);
        // Anything else ends it.
        std::os::unix::net::UnixStream::connect(&socket).unwrap().shutdown(std::net::Shutdown::Both).unwrap();
        server.join().unwrap();
    }

    /// L11: a terminal multiplexer, whose server runs commands for whoever reaches its socket.
    fn a_multiplexer_runs_nothing(world) {
        if !["tmux", "bwrap"].iter().all(|program| world.has(program)) {
            return;
        }
        let socket = world.outside().join("tmux");
        let tmux = |words: &[&str]| world.native("tmux").arg("-S").arg(&socket).args(["-f", "/dev/null"]).args(words).env("TERM", "xterm").run();
        tmux(&["new-session", "-d", "-s", "outside", "sleep 300"]).assert_success();
        let run = format!("tmux -S {} run-shell \"touch $1\"", socket.display());
        let keys = format!("tmux -S {} new-window \"touch $1; tmux -S {} wait-for -S $1\" && tmux -S {} wait-for $1", socket.display(), socket.display(), socket.display());
        try_clients(world, &[("run-shell", run), ("new-window", keys)]);
        tmux(&["kill-server"]).assert_success();
    }

    /// L11: the control socket of a connection that somebody has open, by which commands run on the other side without a key.
    fn a_control_master_runs_nothing(world) {
        if !["ssh", "sshd", "ssh-keygen", "bwrap"].iter().all(|program| world.has(program)) {
            return;
        }
        if world.identity().is_root() {
            // Where the service never ran.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let base = world.outside();
        world.own_tree(&base);
        let file = |name: &str| base.join(name).to_str().unwrap().to_owned();
        for name in ["host", "key"] {
            world.native("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &file(name)]).run().assert_success();
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let options = [
            format!("HostKey={}", file("host")),
            format!("AuthorizedKeysFile={}", file("key.pub")),
            format!("Port={port}"),
            format!("PidFile={}", file("pid")),
        ];
        let more = ["ListenAddress=127.0.0.1", "StrictModes=no", "UsePAM=no", "PermitRootLogin=yes", "PasswordAuthentication=no"];
        let options = options.iter().map(String::as_str).chain(more).flat_map(|option| ["-o", option]);
        let mut daemon = world.native("/usr/sbin/sshd").args(["-D", "-f", "/dev/null"]).args(options).spawn();
        daemon.wait_until("the daemon listens", || std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok());
        let user = world.native("id").arg("-un").run().stdout();
        let user = format!("{}@127.0.0.1", user.trim());
        let socket = file("master");
        let plain = ["-F", "/dev/null", "-o", "UserKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"];
        let mut master = world.native("ssh").args(plain).args(["-M", "-N", "-S", &socket, "-i", &file("key"), "-p", &port, &user]).spawn();
        master.wait_until("the connection is there", || Path::new(&socket).exists());
        let through = format!("ssh {} -S {socket} -o ControlMaster=no -o ProxyCommand=false -p {port} {user}", plain.join(" "));
        try_clients(world, &[("control-run", format!("{through} touch $1; test -e $1"))]);
        master.signal(Signal::TERM);
        drop(master.wait());
        daemon.signal(Signal::TERM);
        drop(daemon.wait());
    }

    /// L11: what is pushed into the terminal that the launcher shares with a shell isn't read by that shell.
    fn nothing_is_typed_for_the_caller(world) {
        let push = world.write("push.py", "import fcntl, sys, termios\ntry:\n    for byte in ('touch ' + sys.argv[1] + '\\n').encode():\n        fcntl.ioctl(0, termios.TIOCSTI, bytes([byte]))\n    print('pushed' + ' it')\nexcept OSError:\n    print('refused' + ' it')\n");
        let terminal = program::install(world, "terminal.py", program::TERMINAL);
        let on_terminal = |command: &str, said: &str| {
            let steps = serde_json::json!([["ready>", format!("{command}\n")], [said, "exit\n"]]).to_string();
            let output = world.native("/usr/bin/python3").args(["-I"]).arg(&terminal).args(["80", "24", &steps, "bash", "--norc", "-i"]).env("PS1", "ready> ").run();
            output.assert_success();
            assert!(output.stdout().contains("steps left: 0"), "{}", output.stdout());
        };
        for backend in BACKENDS {
            let target = world.outside().join(backend);
            let command = format!("{} run -q --backend {backend} -- python3 {} {}", world.binary().display(), push.display(), target.display());
            on_terminal(&command, "refused it");
            assert!(!target.exists(), "{backend}");
        }
        // The control. Newer kernels let nobody but root.
        let legacy = fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").unwrap_or_default();
        if world.identity().is_root() || legacy.trim() != "0" {
            let target = world.outside().join("unconfined");
            on_terminal(&format!("python3 {} {}", push.display(), target.display()), "pushed it");
            assert!(target.exists());
        }
    }
}
