//! How bytes and times appear in JSON: a name that isn't UTF-8 is `{"text": lossy, "b64": exact}` inside our own
//! records (the event export has a `_b64` field beside the lossy one instead); times are RFC 3339 with nanoseconds.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::event::{Time, Version};

/// Returns base64 (standard alphabet, padded).
pub(crate) fn to_b64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Returns the bytes that base64 stands for.
pub(crate) fn from_b64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Returns a path made of bytes.
pub(crate) fn path_from(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

pub(crate) fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Joins byte strings, each ended by NUL.
pub(crate) fn join_nul<'a>(parts: impl IntoIterator<Item = &'a OsStr>) -> Vec<u8> {
    let mut all = Vec::new();
    for part in parts {
        all.extend_from_slice(part.as_bytes());
        all.push(0);
    }
    all
}

/// Splits what [`join_nul`] joined.
pub(crate) fn split_nul(all: &[u8]) -> impl Iterator<Item = &[u8]> {
    let body = all.strip_suffix(&[0]);
    body.into_iter().flat_map(|body| body.split(|&byte| byte == 0))
}

impl Time {
    /// Returns the time as RFC 3339 in UTC, with nine digits of nanoseconds.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        match Timestamp::from_nanosecond(i128::from(self.0)) {
            Ok(time) => format!("{time:.9}"),
            Err(_) => String::new(),
        }
    }

    /// Returns the time that RFC 3339 text stands for.
    #[must_use]
    pub fn from_rfc3339(text: &str) -> Option<Self> {
        let time: Timestamp = text.parse().ok()?;
        i64::try_from(time.as_nanosecond()).ok().map(Self)
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct VersionText {
    size: u64,
    mtime: String,
    ctime: String,
}

impl From<Version> for VersionText {
    fn from(version: Version) -> Self {
        Self {
            size: version.size,
            mtime: Time(version.mtime).to_rfc3339(),
            ctime: Time(version.ctime).to_rfc3339(),
        }
    }
}

impl TryFrom<VersionText> for Version {
    type Error = String;

    fn try_from(text: VersionText) -> Result<Self, String> {
        let time = |text: &str| {
            Time::from_rfc3339(text).map(|time| time.0).ok_or_else(|| format!("bad time `{text}`"))
        };
        Ok(Self { size: text.size, mtime: time(&text.mtime)?, ctime: time(&text.ctime)? })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Bytes { text: String, b64: String },
}

impl Name {
    fn new(path: &Path) -> Self {
        path.to_str().map_or_else(
            || Self::Bytes {
                text: path.to_string_lossy().into_owned(),
                b64: to_b64(path_bytes(path)),
            },
            |text| Self::Text(text.to_owned()),
        )
    }

    fn path<E: serde::de::Error>(self) -> Result<PathBuf, E> {
        match self {
            Self::Text(text) => Ok(PathBuf::from(text)),
            Self::Bytes { b64, .. } => {
                from_b64(&b64).map(path_from).ok_or_else(|| E::custom("bad base64"))
            }
        }
    }
}

macro_rules! path_module {
    ($name:ident, $type:ty as $borrowed:ty, $wire:ty, |$in:ident| $to:expr, |$out:ident| $from:expr) => {
        pub(crate) mod $name {
            use super::*;
            use serde::{Deserializer, Serializer};

            pub(crate) fn serialize<S: Serializer>(
                $in: &$borrowed,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                $to.serialize(serializer)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$type, D::Error> {
                let $out = <$wire>::deserialize(deserializer)?;
                $from
            }
        }
    };
}

path_module!(path, PathBuf as Path, Name, |path| Name::new(path), |name| name.path());
path_module!(
    opt_path,
    Option<PathBuf> as Option<PathBuf>,
    Option<Name>,
    |path| path.as_deref().map(Name::new),
    |name| name.map(Name::path).transpose()
);
path_module!(
    paths,
    Vec<PathBuf> as [PathBuf],
    Vec<Name>,
    |paths| paths.iter().map(|path| Name::new(path)).collect::<Vec<_>>(),
    |names| names.into_iter().map(Name::path).collect()
);
path_module!(
    path_pairs,
    Vec<(PathBuf, PathBuf)> as [(PathBuf, PathBuf)],
    Vec<(Name, Name)>,
    |pairs| pairs.iter().map(|(from, to)| (Name::new(from), Name::new(to))).collect::<Vec<_>>(),
    |names| names.into_iter().map(|(from, to)| Ok((from.path()?, to.path()?))).collect()
);
