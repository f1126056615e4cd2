-- More derived tables for quick answers, as those of schema.sql. Since format 1.2.
-- How many paths a program touched in just these ways.
CREATE TABLE IF NOT EXISTS touch_count (
    run INTEGER NOT NULL, exe INTEGER NOT NULL, how INTEGER NOT NULL, paths INTEGER NOT NULL,
    PRIMARY KEY (run, exe, how)
) WITHOUT ROWID;
-- In which blocks of 4096 events a program appears, whichever of its processes it was.
CREATE TABLE IF NOT EXISTS exe_block (exe INTEGER NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (exe, block)) WITHOUT ROWID;
