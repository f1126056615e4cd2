//! Lists of small attempts, each a shell fragment, made one after another in one confined shell.

use std::collections::BTreeMap;

use stockade_tests::{Output, World};

/// What each attempt ended with: 0 or the shell's status, and what it said.
#[derive(Debug)]
pub struct Attempts {
    ended: BTreeMap<String, (i32, String)>,
    /// The run that they were made in.
    pub output: Output,
}

/// Shell functions that the attempts may use: `py` runs a program from its argument, `exchange` two names.
const PRELUDE: &str = r#"
py() { /usr/bin/python3 -I -S -B -c "$@"; }
exchange() { py 'import ctypes,os,sys
libc=ctypes.CDLL(None,use_errno=True)
a,b=(os.fsencode(x) for x in sys.argv[1:3])
sys.exit(0 if libc.renameat2(-100,a,-100,b,2)==0 else os.strerror(ctypes.get_errno()))' "$1" "$2"; }
attempt() {
    name=$1
    said=$( (set -e; eval "$2") 2>&1 )
    code=$?
    printf '%s\t%d\t' "$name" "$code"
    printf '%s' "$said" | tail -n 3 | tr '\n\t' '  '
    printf '\n'
}
"#;

/// Makes the attempts in the workspace, under `stockade run` with these options.
pub fn make(world: &World, options: &[&str], rows: &[(&str, &str)]) -> Attempts {
    let mut script = PRELUDE.to_owned();
    for (index, (name, body)) in rows.iter().enumerate() {
        // The shell that reads the attempts must not read them as its own.
        let body = body.replace('\'', "'\\''");
        script.push_str(&format!("cd \"$top\"; attempt {index}:{name} '{body}'\n"));
    }
    let script = format!("top=$PWD\n{script}");
    let options = [&["-q"], options].concat();
    let output = world.run(&options).args(["bash", "-c", &script]).run();
    output.assert_success();
    let mut ended = BTreeMap::new();
    for line in output.stdout().lines() {
        let mut columns = line.splitn(3, '\t');
        let name = columns.next().unwrap().split_once(':').unwrap().1.to_owned();
        let code = columns.next().unwrap().parse().unwrap();
        ended.insert(name, (code, columns.next().unwrap().to_owned()));
    }
    assert_eq!(ended.len(), rows.len(), "{}\n{}", output.stdout(), output.stderr());
    Attempts { ended, output }
}

impl Attempts {
    /// Fails unless each attempt failed.
    #[track_caller]
    pub fn all_refused(&self) -> &Self {
        let passed: Vec<_> = self.ended.iter().filter(|(_, (code, _))| *code == 0).collect();
        assert!(passed.is_empty(), "not refused: {passed:#?}");
        // A fragment that the shell can't read or a program that is missing proves nothing.
        let broken: Vec<_> = self
            .ended
            .iter()
            .filter(|(_, (code, said))| {
                *code == 127
                    || said.contains("yntax")
                    || said.contains("Traceback") && !said.contains("Error")
            })
            .collect();
        assert!(broken.is_empty(), "not attempted: {broken:#?}");
        self
    }

    /// Fails unless each attempt succeeded.
    #[track_caller]
    pub fn all_succeeded(&self) -> &Self {
        let failed: Vec<_> = self.ended.iter().filter(|(_, (code, _))| *code != 0).collect();
        assert!(failed.is_empty(), "failed: {failed:#?}");
        self
    }
}

/// Says something past libtest's capture: a seed, a measurement.
pub fn say(text: &str) {
    use std::io::Write;
    // A closed stderr must not fail a test.
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}
