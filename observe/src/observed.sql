-- What the session has seen (contract O2): derived state that changes, so the chain doesn't cover it. Since format 1.1.
CREATE TABLE IF NOT EXISTS observed (
    ino INTEGER NOT NULL, dev INTEGER NOT NULL, generation INTEGER NOT NULL,
    size INTEGER NOT NULL, mtime INTEGER NOT NULL, ctime INTEGER NOT NULL,
    PRIMARY KEY (ino, dev, generation)
) WITHOUT ROWID;
-- The names looked at, by the directory that holds them; `absent` is 1 where there was nothing.
CREATE TABLE IF NOT EXISTS observed_name (
    ino INTEGER NOT NULL, dev INTEGER NOT NULL, generation INTEGER NOT NULL, name BLOB NOT NULL,
    absent INTEGER NOT NULL,
    PRIMARY KEY (ino, dev, generation, name)
) WITHOUT ROWID;
