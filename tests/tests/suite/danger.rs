//! `--mode danger-full-access`: nothing is refused, everything in the workspace is still observed, and it is said plainly (L1).

use std::fs;

use stockade_tests::as_root_and_user;

const MODE: [&str; 2] = ["--mode", "danger-full-access"];

as_root_and_user! {
    /// L1: outside the workspace too.
    fn nothing_is_refused(world) {
        let script = format!(
            "set -e; echo in > f; echo out > {0}/f; mkdir {0}/d; mv {0}/f {0}/d/g; echo h > $HOME/h; rm f; echo again > f; echo x > /tmp/{1}; rm /tmp/{1}",
            world.outside().display(),
            world.directory().file_name().unwrap().to_str().unwrap(),
        );
        let (output, result) = world.run_with_result(&MODE, &["sh", "-c", &script]);
        output.assert_success();
        assert_eq!(fs::read(world.outside().join("d/g")).unwrap(), b"out\n");
        assert_eq!(fs::read(world.home().join("h")).unwrap(), b"h\n");
        assert_eq!(fs::read(world.workspace().join("f")).unwrap(), b"again\n");
        assert_eq!(result["denial_count"], 0);
        assert_eq!(result["outcome"], "exited");
    }

    /// L1: the result says `none`, and a person is told.
    fn it_is_said_plainly(world) {
        let (output, result) = world.run_with_result(&MODE, &["true"]);
        output.assert_success();
        assert_eq!(result["enforcement"]["level"], "none");
        assert_eq!(result["policy"]["mode"], "danger-full-access");
        assert!(output.stderr().contains("unprotected"), "{}", output.stderr());
        let quiet = world.run(&[&MODE[..], &["-q"]].concat()).arg("true").run();
        assert_eq!((quiet.code, quiet.stderr()), (0, String::new()));
    }
}
