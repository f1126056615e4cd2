//! Following a log while it is written, and asking it in SQL.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::ValueRef;

use crate::dict::Stored;
use crate::error::{Error, Result};
use crate::query::Filter;
use crate::store::Store;

/// How often the log is looked at.
const POLL: Duration = Duration::from_millis(40);
/// How many events come at once, at most.
const MANY: usize = 10_000;

/// New events of a log, as they are committed.
pub struct Follow<'s> {
    store: &'s Store,
    filter: Filter,
    after: i64,
    seen: Option<i64>,
}

/// A value that SQL gave.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    /// `NULL`.
    Null,
    /// A whole number.
    Integer(i64),
    /// Another number.
    Real(f64),
    /// Text, or a name's bytes: not always UTF-8.
    Text(Vec<u8>),
    /// Bytes.
    Blob(Vec<u8>),
}

impl From<ValueRef<'_>> for SqlValue {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(value) => Self::Integer(value),
            ValueRef::Real(value) => Self::Real(value),
            ValueRef::Text(value) => Self::Text(value.to_vec()),
            ValueRef::Blob(value) => Self::Blob(value.to_vec()),
        }
    }
}

impl Store {
    /// Follows the log from after event `after` on.
    #[must_use]
    pub fn follow(&self, filter: Filter, after: i64) -> Follow<'_> {
        Follow { store: self, filter: Filter { last: None, ..filter }, after, seen: None }
    }

    /// Runs one reading statement; `columns` gets their names, `each` gets each row.
    ///
    /// # Errors
    /// It isn't one statement, it would change something or reach another file, or it fails.
    pub fn sql(
        &mut self,
        sql: &str,
        columns: impl FnOnce(Vec<String>),
        mut each: impl FnMut(Vec<SqlValue>) -> ControlFlow<()>,
    ) -> Result<()> {
        let failed = "run the query";
        self.conn.authorizer(Some(only_read)).map_err(Error::sql(failed))?;
        let run = || -> rusqlite::Result<()> {
            let mut select = self.conn.prepare(sql)?;
            columns(select.column_names().map(str::to_owned).collect());
            let width = select.column_count();
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                let values = (0..width)
                    .map(|at| row.get_ref(at).map(SqlValue::from))
                    .collect::<rusqlite::Result<Vec<_>>>()?;
                if each(values).is_break() {
                    break;
                }
            }
            Ok(())
        };
        let result = run().map_err(Error::sql(failed));
        self.conn
            .authorizer(None::<fn(AuthContext<'_>) -> Authorization>)
            .map_err(Error::sql(failed))?;
        result
    }
}

fn only_read(context: AuthContext<'_>) -> Authorization {
    if matches!(
        context.action,
        AuthAction::Select
            | AuthAction::Read { .. }
            | AuthAction::Function { .. }
            | AuthAction::Recursive
    ) {
        Authorization::Allow
    } else {
        Authorization::Deny
    }
}

impl Follow<'_> {
    /// Waits for new events that the filter wants, at most so long; none came in time: none are returned.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn wait(&mut self, longest: Duration) -> Result<Vec<Stored>> {
        let deadline = Instant::now() + longest;
        loop {
            let version = self.data_version()?;
            if self.seen != Some(version) {
                let last = self.store.last_seq()?;
                let filter = Filter { after: Some(self.after), ..self.filter.clone() };
                let mut new = Vec::new();
                self.store.for_each(&filter, |event| {
                    new.push(event);
                    if new.len() < MANY {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })?;
                let more = new.len() >= MANY;
                if more {
                    self.after = new.last().map_or(self.after, |event| event.seq);
                } else {
                    self.after = new.last().map_or(last, |event| event.seq.max(last));
                    self.seen = Some(version);
                }
                if !new.is_empty() {
                    return Ok(new);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Vec::new());
            }
            thread::sleep(left.min(POLL));
        }
    }

    fn data_version(&self) -> Result<i64> {
        self.store
            .conn
            .pragma_query_value(None, "data_version", |row| row.get(0))
            .map_err(Error::sql("look for news"))
    }
}

impl std::fmt::Debug for Follow<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").field("after", &self.after).finish_non_exhaustive()
    }
}
