-- The engine's tables. Each is a noun; the trace is the state: runs → scopes → attempts → events.
-- Contexts and outputs are packed values (JSON, zstd of it, or a reference to a blob), so they are bytea that Postgres
-- need not compress again.

CREATE TABLE flujo_pipelines (
    fingerprint text PRIMARY KEY,
    reference   text NOT NULL,
    name        text NOT NULL,
    version     text NOT NULL,
    plan        jsonb NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX flujo_pipelines_reference ON flujo_pipelines (reference, created_at DESC);

CREATE TABLE flujo_runs (
    id                  text PRIMARY KEY,
    fingerprint         text NOT NULL REFERENCES flujo_pipelines,
    reference           text NOT NULL,
    name                text NOT NULL,
    status              text NOT NULL DEFAULT 'queued'
                        CHECK (status IN ('queued', 'running', 'parked', 'succeeded', 'failed', 'cancelled', 'expired')),
    reason              text,
    error               jsonb,
    input               bytea NOT NULL,
    output              bytea,
    limits              jsonb,
    tenant              text NOT NULL DEFAULT '',
    queue               text NOT NULL,
    priority            smallint,
    idempotency_key     text,
    digest              text NOT NULL,
    metadata            jsonb NOT NULL DEFAULT '{}',
    trace_parent        text,
    deadline_at         timestamptz,
    cancel_requested_at timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    started_at          timestamptz,
    ended_at            timestamptz,
    CHECK ((ended_at IS NULL) = (status IN ('queued', 'running', 'parked'))),
    UNIQUE (tenant, idempotency_key)
);
CREATE INDEX flujo_runs_recent ON flujo_runs (created_at DESC);
CREATE INDEX flujo_runs_live ON flujo_runs (status, created_at) WHERE status IN ('queued', 'running', 'parked');

-- A live or closed place in a run's tree: the unit of locking.
CREATE TABLE flujo_scopes (
    run_id    text NOT NULL,
    address   text NOT NULL,
    status    text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'succeeded', 'failed', 'cancelled')),
    cursor    integer NOT NULL DEFAULT 0,
    version   integer NOT NULL DEFAULT 0,
    output    bytea NOT NULL,
    context   bytea,
    closed_by text,
    opened_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    PRIMARY KEY (run_id, address)
) WITH (fillfactor = 80);
ALTER TABLE flujo_scopes ALTER COLUMN context SET STORAGE EXTERNAL, ALTER COLUMN output SET STORAGE EXTERNAL;

-- One try at one piece of work. Also the outbox and the timer table: a row that is `ready` is published when it is due.
CREATE TABLE flujo_attempts (
    key          text PRIMARY KEY,
    run_id       text NOT NULL,
    address      text NOT NULL,
    step         text NOT NULL,
    number       integer NOT NULL CHECK (number >= 1),
    kind         text NOT NULL DEFAULT 'step' CHECK (kind IN ('step', 'start', 'join', 'resume')),
    status       text NOT NULL DEFAULT 'ready'
                 CHECK (status IN ('ready', 'queued', 'running', 'succeeded', 'failed', 'paused', 'cancelled')),
    reason       text,
    fence        integer NOT NULL DEFAULT 0,
    losses       integer NOT NULL DEFAULT 0,
    worker       text,
    queue        text NOT NULL,
    available_at timestamptz NOT NULL DEFAULT now(),
    sent_at      timestamptz,
    sends        integer NOT NULL DEFAULT 0,
    guidance     text,
    output       bytea,
    error        jsonb,
    metadata     jsonb,
    latency_s    double precision,
    created_at   timestamptz NOT NULL DEFAULT now(),
    started_at   timestamptz,
    ended_at     timestamptz
) WITH (fillfactor = 80);
ALTER TABLE flujo_attempts ALTER COLUMN output SET STORAGE EXTERNAL;
-- An attempt owns its scope: one live attempt each.
CREATE UNIQUE INDEX flujo_attempts_owner ON flujo_attempts (run_id, address) WHERE status IN ('ready', 'queued', 'running');
CREATE INDEX flujo_attempts_run ON flujo_attempts (run_id);
CREATE INDEX flujo_attempts_live ON flujo_attempts (status, available_at) WHERE status IN ('ready', 'queued', 'running');

-- The spend, once per attempt and fence, whether or not its outcome was merged.
CREATE TABLE flujo_spends (
    key           text NOT NULL,
    fence         integer NOT NULL,
    run_id        text NOT NULL,
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    requests      integer NOT NULL DEFAULT 0,
    cost_usd      double precision NOT NULL DEFAULT 0,
    at            timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (key, fence)
);
CREATE INDEX flujo_spends_run ON flujo_spends (run_id);

-- One worker process, one incarnation. The lease is the worker's; attempts point to it.
CREATE TABLE flujo_workers (
    id          text PRIMARY KEY,
    host        text NOT NULL,
    pid         integer NOT NULL,
    build       text NOT NULL,
    slots       integer NOT NULL,
    lease_until timestamptz NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    ended_at    timestamptz
) WITH (fillfactor = 50);

CREATE TABLE flujo_events (
    id      bigint GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL DEFAULT now(),
    run_id  text,
    attempt text,
    fence   integer,
    name    text NOT NULL,
    level   text NOT NULL DEFAULT 'info',
    data    jsonb NOT NULL DEFAULT '{}'
) PARTITION BY RANGE (at);
CREATE TABLE flujo_events_default PARTITION OF flujo_events DEFAULT;
CREATE INDEX flujo_events_run ON flujo_events (run_id, id);

CREATE TABLE flujo_budgets (
    scope        text PRIMARY KEY,
    limit_usd    double precision,
    limit_tokens bigint,
    settled_usd  double precision NOT NULL DEFAULT 0,
    settled_tokens bigint NOT NULL DEFAULT 0,
    reserved_usd double precision NOT NULL DEFAULT 0,
    reserved_tokens bigint NOT NULL DEFAULT 0,
    overrun_usd  double precision NOT NULL DEFAULT 0,
    overrun_tokens bigint NOT NULL DEFAULT 0,
    CHECK (limit_usd IS NULL OR settled_usd + reserved_usd <= limit_usd),
    CHECK (limit_tokens IS NULL OR settled_tokens + reserved_tokens <= limit_tokens)
);

-- A person's answer or request: single use, bound to its question.
CREATE TABLE flujo_inputs (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id   text NOT NULL,
    attempt  text,
    kind     text NOT NULL CHECK (kind IN ('answer', 'cancel')),
    actor    text,
    note     text,
    data     jsonb,
    at       timestamptz NOT NULL DEFAULT now(),
    acted_at timestamptz
);
CREATE INDEX flujo_inputs_run ON flujo_inputs (run_id);

CREATE TABLE flujo_blobs (
    digest     text PRIMARY KEY,
    body       bytea NOT NULL,
    touched_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE flujo_blobs ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE flujo_broker_epochs (
    epoch      text PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE flujo_health_reports (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    report     jsonb NOT NULL
);

-- One row: the process that updates it sweeps, so that a fleet of any size sweeps about once a second.
CREATE TABLE flujo_sweeps (
    id       boolean PRIMARY KEY DEFAULT true CHECK (id),
    swept_at timestamptz NOT NULL DEFAULT '-infinity',
    worker   text
);
INSERT INTO flujo_sweeps DEFAULT VALUES;
