"""The tables of a store, and how a file of an older version is brought up to date."""

from __future__ import annotations

from shakeproof.campaign.intact import TABLES

# Identifies the file as ours, among all that SQLite keeps; "shak" in ASCII.
APPLICATION = 0x7368616B
# Every step leads from a version to the next one; a new store takes all of them.
STEPS = (
    """
    -- A network as it was asked about: `digest` is of all that its answers depend on, `identity` of its file.
    CREATE TABLE models (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, identity TEXT NOT NULL, name TEXT NOT NULL,
        facts TEXT NOT NULL) STRICT;
    -- Pixels as they were perturbed; `digest` is theirs alone.
    CREATE TABLE images (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL, name TEXT NOT NULL, label INTEGER, shape TEXT NOT NULL,
        kind TEXT NOT NULL, pixels BLOB NOT NULL) STRICT;
    CREATE UNIQUE INDEX image_by_content ON images (digest, name, ifnull(label, -1));
    CREATE TABLE perturbations (id INTEGER PRIMARY KEY, definition TEXT NOT NULL UNIQUE) STRICT;
    CREATE TABLE campaigns (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, name TEXT NOT NULL, file TEXT NOT NULL, toml TEXT NOT NULL,
        requirement_id TEXT NOT NULL, requirement_text TEXT NOT NULL, strengths TEXT NOT NULL, tool TEXT NOT NULL,
        started TEXT NOT NULL, last_run TEXT NOT NULL) STRICT;
    -- What is asked, once, whichever campaigns ask it. `owner` works on it and counts on in `lease`; `deaths` counts
    -- the workers that died of it.
    CREATE TABLE queries (
        id INTEGER PRIMARY KEY, question TEXT NOT NULL, strengths TEXT NOT NULL,
        model INTEGER NOT NULL REFERENCES models, image INTEGER NOT NULL REFERENCES images,
        perturbation INTEGER NOT NULL REFERENCES perturbations, settings TEXT NOT NULL, owner TEXT,
        lease INTEGER, deaths INTEGER NOT NULL DEFAULT 0, UNIQUE (question, strengths)) STRICT;
    CREATE TABLE items (
        campaign INTEGER NOT NULL REFERENCES campaigns, number INTEGER NOT NULL,
        query INTEGER NOT NULL REFERENCES queries, image INTEGER NOT NULL REFERENCES images,
        PRIMARY KEY (campaign, number)) STRICT, WITHOUT ROWID;
    CREATE INDEX item_by_query ON items (query);
    -- Answers. `timeout` is what was allowed, where it was not enough; `unproved` says why there is no certificate.
    CREATE TABLE results (
        query INTEGER PRIMARY KEY REFERENCES queries, status TEXT NOT NULL, reason TEXT, timeout REAL,
        label_predicted INTEGER NOT NULL, record TEXT NOT NULL, curve BLOB, unproved TEXT, finished TEXT NOT NULL)
        STRICT;
    CREATE TABLE certificates (
        query INTEGER PRIMARY KEY REFERENCES results, sha256 TEXT NOT NULL, certificate BLOB NOT NULL) STRICT;
    -- Queries that ended without an answer, and why.
    CREATE TABLE errors (
        query INTEGER PRIMARY KEY REFERENCES queries, kind TEXT NOT NULL, message TEXT NOT NULL, timeout REAL,
        finished TEXT NOT NULL) STRICT;
    """,
    # Checksums of rows: see intact.py.
    ";\n".join(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER" for table in TABLES),
)
VERSION, WITH_CHECKSUMS = len(STEPS), 2
