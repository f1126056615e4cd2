-- The log of one session, format 1.0. Rows of the tables up to `event` are never changed: the chain covers them.
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

CREATE TABLE path (id INTEGER PRIMARY KEY, bytes BLOB NOT NULL);
CREATE UNIQUE INDEX path_by_bytes ON path (bytes);

CREATE TABLE process (
    id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, start_time INTEGER NOT NULL, ppid INTEGER NOT NULL,
    exe INTEGER NOT NULL, comm BLOB NOT NULL, cmdline BLOB NOT NULL, uid INTEGER NOT NULL
);
CREATE INDEX process_by_pid ON process (pid, start_time);
CREATE INDEX process_by_exe ON process (exe);

CREATE TABLE target (id INTEGER PRIMARY KEY, path INTEGER NOT NULL, dev INTEGER, ino INTEGER, generation INTEGER);
CREATE INDEX target_by_path ON target (path, ino);

CREATE TABLE rule (id INTEGER PRIMARY KEY, name TEXT NOT NULL, source TEXT NOT NULL);

CREATE TABLE run (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, started INTEGER NOT NULL, argv BLOB NOT NULL, cwd BLOB NOT NULL,
    mode TEXT NOT NULL, source TEXT NOT NULL, root BLOB NOT NULL, writable_roots BLOB NOT NULL, backend TEXT NOT NULL
);

-- `seq` of the run's own first and last events; `at_most` bounds what an interrupted run can have lost.
CREATE TABLE run_end (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, time INTEGER NOT NULL, outcome TEXT NOT NULL, exit_code INTEGER,
    signal INTEGER, lost INTEGER NOT NULL, at_most INTEGER NOT NULL, summary TEXT
);
CREATE INDEX run_end_by_run ON run_end (run);

CREATE TABLE session_event (id INTEGER PRIMARY KEY, time INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);

-- outcome: 0 ok, 1 denied, 2 error. publication: 0 atomic, 1 in place. Times of versions are kept as differences:
-- mtime = time - *_mtime, ctime = mtime + *_ctime; after_size -1 without times is the version before. `change` is 1 where an ok operation changed something.
CREATE TABLE event (
    seq INTEGER PRIMARY KEY, time INTEGER NOT NULL, run INTEGER NOT NULL, process INTEGER NOT NULL, op INTEGER NOT NULL,
    target INTEGER NOT NULL, path2 INTEGER, outcome INTEGER NOT NULL, errno INTEGER, rule INTEGER,
    bytes_read INTEGER, bytes_written INTEGER,
    before_size INTEGER, before_mtime INTEGER, before_ctime INTEGER,
    after_size INTEGER, after_mtime INTEGER, after_ctime INTEGER,
    publication INTEGER, change INTEGER NOT NULL, count INTEGER NOT NULL
);
CREATE INDEX event_by_target ON event (target);
CREATE INDEX event_by_path2 ON event (path2) WHERE path2 IS NOT NULL;
CREATE INDEX event_denied ON event (run) WHERE outcome = 1;
CREATE INDEX event_changed ON event (run) WHERE change = 1;

-- One row a batch. `last_*` are the last ids of each table after it; `digest` covers the rows it added and `tags`,
-- four bytes a row that tell which row is wrong; `hash` covers this row and the hash before it.
CREATE TABLE chain (
    id INTEGER PRIMARY KEY, time INTEGER NOT NULL, last_path INTEGER NOT NULL, last_process INTEGER NOT NULL,
    last_target INTEGER NOT NULL, last_rule INTEGER NOT NULL, last_run INTEGER NOT NULL, last_run_end INTEGER NOT NULL,
    last_session_event INTEGER NOT NULL, last_event INTEGER NOT NULL, digest BLOB NOT NULL, tags BLOB NOT NULL,
    hash BLOB NOT NULL
);

-- Derived from the events, for quick answers; not covered by the chain, and rebuilt when in doubt.
CREATE TABLE run_stat (
    run INTEGER NOT NULL, process INTEGER NOT NULL, op INTEGER NOT NULL, outcome INTEGER NOT NULL,
    events INTEGER NOT NULL, count INTEGER NOT NULL, bytes_read INTEGER NOT NULL, bytes_written INTEGER NOT NULL,
    hidden INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (run, process, op, outcome)
) WITHOUT ROWID;
-- Which program touched which path in a run, and how (bits of `Touch`).
CREATE TABLE touch (
    run INTEGER NOT NULL, exe INTEGER NOT NULL, path INTEGER NOT NULL, how INTEGER NOT NULL,
    PRIMARY KEY (run, exe, path)
) WITHOUT ROWID;
-- In which blocks of 4096 events a process appears.
CREATE TABLE process_block (
    process INTEGER NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (process, block)
) WITHOUT ROWID;
CREATE TABLE run_block (run INTEGER NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (run, block)) WITHOUT ROWID;

-- For people who write SQL.
CREATE TABLE op (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE VIEW processes AS
    SELECT p.id, p.pid, p.start_time, p.ppid, CAST(x.bytes AS TEXT) AS exe, CAST(p.comm AS TEXT) AS comm,
        replace(CAST(p.cmdline AS TEXT), char(0), ' ') AS cmdline, p.uid
    FROM process p JOIN path x ON x.id = p.exe;
CREATE VIEW runs AS
    SELECT r.id, r.name AS run, r.started, replace(CAST(r.argv AS TEXT), char(0), ' ') AS argv,
        CAST(r.cwd AS TEXT) AS cwd, r.mode, r.source, CAST(r.root AS TEXT) AS root, r.backend,
        coalesce(e.outcome, 'running') AS outcome, e.exit_code, e.signal, e.time AS finished, e.lost
    FROM run r LEFT JOIN run_end e ON e.run = r.id;
CREATE VIEW events AS
    SELECT e.seq, strftime('%Y-%m-%dT%H:%M:%S', e.time / 1000000000, 'unixepoch')
            || printf('.%09dZ', e.time % 1000000000) AS time, e.time AS time_ns,
        r.name AS run, p.pid, p.ppid, CAST(x.bytes AS TEXT) AS exe, CAST(p.comm AS TEXT) AS comm, p.uid,
        o.name AS op, CAST(tp.bytes AS TEXT) AS path, CAST(p2.bytes AS TEXT) AS path2, t.dev, t.ino,
        CASE e.outcome WHEN 0 THEN 'ok' WHEN 1 THEN 'denied' ELSE 'error' END AS outcome, e.errno, u.name AS rule,
        u.source AS rule_source, e.bytes_read, e.bytes_written, e.before_size,
        CASE WHEN e.after_mtime IS NULL AND e.after_size = -1 THEN e.before_size ELSE e.after_size END AS after_size,
        CASE e.publication WHEN 0 THEN 'atomic' WHEN 1 THEN 'in-place' END AS publication, e.change, e.count
    FROM event e JOIN run r ON r.id = e.run JOIN process p ON p.id = e.process JOIN path x ON x.id = p.exe
        JOIN op o ON o.id = e.op JOIN target t ON t.id = e.target JOIN path tp ON tp.id = t.path
        LEFT JOIN path p2 ON p2.id = e.path2 LEFT JOIN rule u ON u.id = e.rule;
