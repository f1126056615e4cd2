use super::*;
use crate::Rules;
use std::path::Path;

fn environment(name: &str) -> Option<String> {
    (name == "HOME").then(|| "/home/u".to_owned())
}

fn profile(name: &str) -> Setting<String> {
    Setting::new(name.to_owned(), Origin::Option("--profile".to_owned()))
}

fn resolve(text: &str, profiles: &[&str]) -> Result<Settings, ConfigError> {
    let profiles: Vec<_> = profiles.iter().map(|name| profile(name)).collect();
    Config::parse(text, "config.toml")?.resolve(
        Mode::WorkspaceWrite,
        &profiles,
        Settings::default(),
        &environment,
    )
}

#[test]
fn what_is_not_understood_is_refused_with_its_line_and_the_nearest_name() {
    let rows = [
        (
            "mode = \"read-only\"\ndeny-read = []",
            "config.toml:2: unknown key `deny-read`",
            "deny_read",
        ),
        ("\n\nmoed = 1", "config.toml:3: unknown key `moed`", "mode"),
        ("sandbox_mode = \"read-only\"", "config.toml:1: unknown key `sandbox_mode`", "mode"),
        ("[profile.x]\nwritable = []", "config.toml:2: unknown key `writable`", "writable_roots"),
        ("[profil.x]", "config.toml:1: unknown key `profil`", "profile"),
        ("zzzzzz = 1", "config.toml:1: unknown key `zzzzzz`", ""),
        (
            "use_profiles = [\n\"caches\",\n\"secret\"]",
            "config.toml:3: unknown profile `secret`",
            "secrets",
        ),
        ("[profile.a]\nextends = [\"b\"]", "", ""),
    ];
    for (text, message, nearest) in rows {
        match resolve(text, &[]) {
            Ok(_) => assert_eq!(message, "", "{text}"),
            Err(error) => {
                assert_eq!(error.to_string(), message, "{text}");
                let help = (!nearest.is_empty()).then(|| format!("did you mean `{nearest}`?"));
                assert_eq!(error.help(), help, "{text}");
                assert_eq!(error.code(), "CONFIG_INVALID");
            }
        }
    }
}

#[test]
fn a_wrong_value_is_refused_with_its_line() {
    for (text, part) in [
        ("mode = \"readonly\"", "config.toml:1: `mode`: unknown variant `readonly`"),
        ("mode = 1", "config.toml:1: `mode` takes a string"),
        ("\ndeny_read = \".env\"", "config.toml:2: `deny_read` takes a list of strings"),
        (
            "deny_read = [\n  \"a\",\n  1]",
            "config.toml:3: `an element of deny_read` takes a string",
        ),
        ("deny_read = [\"\"]", "config.toml:1: `deny_read` holds an empty string"),
        ("keep_history = \"yes\"", "config.toml:1: `keep_history` takes true or false"),
        ("history_size = \"5 miles\"", "config.toml:1: `history_size` takes a size"),
        ("timeout = \"5 parsecs\"", "config.toml:1: `timeout` takes a duration"),
        ("approver = []", "config.toml:1: `approver` needs a program"),
        ("profile = 1", "config.toml:1: `profile` takes tables"),
        ("mode = \"read-only\"\nmode = \"read-only\"", "config.toml:2: duplicate key"),
        ("mode =", "config.toml:1: "),
        ("writable_roots = [\"a\"]", "config.toml:1: writable root `a` is not absolute"),
        ("writable_roots = [\"$NOPE/a\"]", "config.toml:1: `$NOPE/a` needs the variable `NOPE`"),
    ] {
        let error = resolve(text, &[]).unwrap_err().to_string();
        assert!(error.starts_with(part), "{text}: {error}");
    }
}

#[test]
fn a_stronger_layer_replaces_a_value_and_adds_to_a_list() {
    let text = r#"
mode = "read-only"
guard = "off"
deny_read = ["a"]
[profile.base]
guard = "enforce"
network = "none"
deny_read = ["b"]
[profile.top]
extends = ["base"]
guard = "audit"
deny_read = ["c", "a"]
"#;
    let config = Config::parse(text, "c.toml").unwrap();
    let option = Origin::Option("--publish".to_owned());
    let options =
        Settings { publish: Some(Setting::new(Publish::Direct, option)), ..Settings::default() };
    let settings =
        config.resolve(Mode::WorkspaceWrite, &[profile("top")], options, &environment).unwrap();
    let rows: Vec<String> = settings
        .rows()
        .into_iter()
        .map(|(key, value, origin)| format!("{key} = {value} # {origin}"))
        .collect();
    assert_eq!(
        rows,
        [
            "mode = \"read-only\" # c.toml:2",
            "approval_policy = \"ask\" # default",
            "guard = \"audit\" # c.toml:11",
            "publish = \"direct\" # --publish",
            "network = \"none\" # c.toml:7",
            "hardlinks = \"break\" # default",
            "observe = \"open\" # default",
            "backend = \"auto\" # default",
            "durable = false # default",
            "keep_history = false # default",
            "require_full = false # default",
            "approver_timeout = \"5m\" # default",
            "deny_read = \"a\" # c.toml:4",
            "deny_read = \"b\" # c.toml:8",
            "deny_read = \"c\" # c.toml:12",
        ]
    );
}

#[test]
fn profiles_that_extend_each_other_are_refused() {
    let text = "[profile.a]\nextends = [\"b\"]\n[profile.b]\nextends = [\"a\"]\n";
    let error = resolve(text, &["a"]).unwrap_err();
    assert_eq!(error.to_string(), "config.toml:4: profile `a` extends itself");
    // But one of a shipped profile's name builds on that one.
    let text = "[profile.caches]\nextends = [\"caches\"]\nwritable_roots = [\"/x\"]\n";
    let settings = resolve(text, &["caches"]).unwrap();
    let has = |path: &str| settings.writable_roots.iter().any(|root| root.value == path);
    assert!(has("/x") && has("/home/u/.npm"));
}

#[test]
fn every_shipped_profile_resolves_and_compiles() {
    let shipped = read::shipped(include_str!("profiles.toml")).unwrap();
    assert!(shipped.len() >= 7);
    let all: Vec<&str> = shipped.keys().map(String::as_str).collect();
    for profiles in shipped.keys().map(|name| vec![name.as_str()]).chain([all]) {
        let settings = resolve("", &profiles).unwrap();
        let mut policy = Policy::new(Mode::WorkspaceWrite, "/home/u/w".into());
        settings.apply(&mut policy);
        Rules::compile(&policy).unwrap();
        for (key, value, origin) in settings.rows() {
            assert!(!value.contains(['$', '~']), "{key} = {value}");
            if !matches!(origin, Origin::Default) {
                assert!(origin.to_string().ends_with("(shipped)"), "{origin}");
            }
        }
    }
    for (name, profile) in &shipped {
        assert!(!profile.description.is_empty(), "{name}");
        assert!(Config::example().contains(name.as_str()), "{name} is not in the example");
        assert!(profile.extends.is_empty(), "{name}: `builds_on_shipped` doesn't follow it");
    }
}

#[test]
fn the_shipped_profiles_open_and_close_what_they_say() {
    let settings = resolve("", &["caches", "secrets", "claude", "codex"]).unwrap();
    let mut policy = Policy::new(Mode::WorkspaceWrite, "/home/u/w".into());
    settings.apply(&mut policy);
    let rules = Rules::compile(&policy).unwrap();
    for (path, read, write) in [
        ("/home/u/.cargo/registry/cache/x.crate", true, true),
        ("/home/u/.cargo/registry/src/c/.vscode/settings.json", true, true),
        ("/home/u/.cargo/.package-cache", true, true),
        ("/home/u/.cargo/bin/cargo", true, false),
        ("/home/u/.cargo/config.toml", true, false),
        ("/home/u/.cargo/credentials.toml", false, false),
        ("/home/u/.npm/_cacache/x", true, true),
        ("/home/u/go/pkg/mod/cache/x", true, true),
        ("/home/u/.ssh/id_ed25519", false, false),
        ("/home/u/.aws/credentials", false, false),
        ("/home/u/.bash_history", false, false),
        ("/home/u/w/.env", false, false),
        ("/home/u/w/api/.env.production.local", false, false),
        ("/home/u/w/.env.example", true, true),
        ("/home/u/.claude/projects/x.jsonl", true, true),
        ("/home/u/.claude/settings.json", true, false),
        ("/home/u/.claude/hooks/x", true, false),
        ("/home/u/.codex/sessions/x", true, true),
        ("/home/u/.codex/config.toml", true, false),
        ("/home/u/w/.claude/settings.json", true, false),
        ("/home/u/.bashrc", true, false),
    ] {
        let zone = rules.zone(Path::new(path));
        assert_eq!((zone.read.is_none(), zone.write.is_none()), (read, write), "{path} {zone:?}");
    }
}

#[test]
fn the_example_shows_every_key_and_holds_as_it_stands() {
    let example = Config::example();
    assert_eq!(Config::parse(example, "example.toml"), Ok(Config::default()));
    let uncommented: String = example
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with(' ') && !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect();
    let config = Config::parse(&uncommented, "example.toml").unwrap();
    for key in Settings::KEYS.iter().chain(&["use_profiles", "extends", "description"]) {
        assert!(uncommented.contains(&format!("{key} = ")), "{key}");
    }
    // A default that is shown is the default.
    let defaults = Settings::defaults(Mode::COMMAND_LINE_DEFAULT);
    let shown = config.settings.rows();
    for (key, value, _) in defaults.rows() {
        assert!(shown.iter().any(|row| row.0 == key && row.1 == value), "{key} = {value}");
    }
}

#[test]
fn durations_are_read_as_they_are_written() {
    for (text, milliseconds) in [
        ("500ms", Some(500)),
        ("90s", Some(90_000)),
        ("5m", Some(300_000)),
        ("2 h", Some(7_200_000)),
        ("1d", Some(86_400_000)),
        ("5", None),
        ("m", None),
        ("-1s", None),
        ("99999999999999999999s", None),
        ("9999999999999999999d", None),
    ] {
        let duration = parse_duration(text);
        assert_eq!(duration, milliseconds.map(Duration::from_millis), "{text}");
        if let Some(duration) = duration {
            assert_eq!(parse_duration(&show_duration(duration)), Some(duration), "{text}");
        }
    }
}
