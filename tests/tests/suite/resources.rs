//! Many files with few descriptors: a tree is walked whole, and memory falls again.

use std::fs;
use std::time::{Duration, Instant};

use stockade_tests::as_root_and_user;

/// `STOCKADE_MANY_FILES` asks for another number.
fn many() -> usize {
    std::env::var("STOCKADE_MANY_FILES").map_or(20_000, |text| text.parse().expect("a number"))
}

/// Reads `name` in kB and the number of open descriptors of the process that serves: the largest of the world's.
fn server(marker: &str) -> Option<(u64, u64, usize)> {
    let mut best = None;
    for entry in fs::read_dir("/proc").ok()? {
        let Ok(entry) = entry else { continue };
        let pid = entry.file_name().to_string_lossy().into_owned();
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { continue };
        let Ok(exe) = fs::read_link(format!("/proc/{pid}/exe")) else { continue };
        if !exe.ends_with("stockade") || !String::from_utf8_lossy(&environment).contains(marker) {
            continue;
        }
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let field = |name: &str| -> Option<u64> {
            status
                .lines()
                .find(|line| line.starts_with(name))?
                .split_whitespace()
                .nth(1)?
                .parse()
                .ok()
        };
        let open = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        if let (Some(peak), Some(now)) = (field("VmHWM:"), field("VmRSS:")) {
            best = best.max(Some((peak, now, open)));
        }
    }
    best
}

as_root_and_user! {
    /// F3, DESIGN 5: 20,000 files are listed, looked at and searched with 256 descriptors: no name is lost, nothing
    /// fails for want of descriptors, and what is known is forgotten when the kernel forgets it.
    fn many_files_need_few_descriptors(world) {
        let count = many();
        for number in 0..count {
            let directory = world.workspace().join(format!("d{}", number / 500));
            if number % 500 == 0 {
                fs::create_dir(&directory).unwrap();
            }
            fs::write(directory.join(format!("file-{number}")), if number % 10_000 == 7 { "needle\n" } else { "hay\n" }).unwrap();
        }
        world.own_tree(&world.workspace());
        let begun = Instant::now();
        let needles = count.div_ceil(10_000);
        let script = "find . -type f | wc -l; find . -type f -size -1000 | wc -l; ls -R | grep -c file-; grep -r needle . | wc -l; echo > ready; while ! test -e go; do sleep 0.05; done; find . -type f -newer go | wc -l; echo > again; while ! test -e end; do sleep 0.05; done";
        let binary = world.binary();
        let mut running = world
            .native("sh")
            .args(["-c", "ulimit -n 256; exec \"$@\"", "sh"])
            .arg(&binary)
            .args(["run", "-q", "--", "sh", "-c", script])
            .deadline(Duration::from_secs(600))
            .spawn();
        running.wait_until("the walk", || world.workspace().join("ready").exists());
        let took = begun.elapsed();
        let marker = world.directory().file_name().unwrap().to_string_lossy().into_owned();
        let walked = server(&marker);
        if world.identity().is_root() {
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            std::thread::sleep(Duration::from_millis(500));
        }
        let forgotten = server(&marker);
        fs::write(world.workspace().join("go"), "").unwrap();
        running.wait_until("the second walk", || world.workspace().join("again").exists());
        fs::write(world.workspace().join("end"), "").unwrap();
        let output = running.wait();
        assert_eq!(output.stderr(), "");
        let found: Vec<&str> = output.stdout.split(|byte| *byte == b'\n').map(|line| std::str::from_utf8(line).unwrap()).filter(|line| !line.is_empty()).collect();
        let wanted = [count, count, count, needles].map(|number| number.to_string());
        assert_eq!(&found[..4], &wanted, "{found:?}");
        let (peak, now, open) = walked.expect("the server is there");
        crate::attempts::say(&format!(
            "{}: {count} files walked four times in {took:.1?}; server: peak {peak} kB, now {now} kB ({} bytes a file), after forgetting {:?} kB, {open} descriptors",
            world.name(), now * 1024 / u64::try_from(count).unwrap(), forgotten.map(|(_, now, _)| now)
        ));
        assert!(open <= 256, "{open} descriptors");
    }
}
