-- The whole schema. What is in these tables is the truth about every run; messages in the broker only say that there is work.
--
--   pipelines → runs → scopes → attempts → spends, events
--
-- * A *run* executes one plan, a row of `flujo_pipelines`, with one input. A child run is one with a parent.
-- * A *scope* is a place in the run's tree, by its address: '' is the root, `review/loop#3/legal` a branch in an iteration. Containers (loop,
--   parallel, …) and the sequences within them are scopes. A scope has the context and the output as of the last merge, and is the unit of
--   locking: `version` is of its last merge, and a merge that decided on another version is undone (FJ001).
-- * An *attempt* is one try at one piece of work in a scope: a step, or the start or the join of a container, or the question to a person.
--   At most one in a scope has not ended. Its life: ready → queued → running → succeeded | failed | cancelled; a question is paused before.
-- * The *outbox* and the timers are the attempts themselves: `ready` with an `available_at` that has come means "publish". The commit that
--   merges an outcome inserts the next attempts; messages are sent afterwards, and the sweeper sends what was not sent, or was lost.
-- * The *lease* is of a worker process, one row that it renews (`flujo_workers.lease_until`); attempts point to the worker. The database's clock
--   decides. When a lease ends, the sweeper makes the worker's attempts ready again.
-- * The *fence* of an attempt rises with each claim, which also draws a random `claim_id`: a crash of Postgres may lose a claim and give the
--   next one the same fence. Only the latest claim may merge. A late or repeated outcome changes nothing but the spend.
-- * *Limits*: budgets are reserved before a call and settled after it; gates admit runs; permits let attempts run; guards pace models.
-- * *Events* are the history, in partitions of a day. The views at the end read spans and traces from rows and events.
--
-- Values (inputs, outputs, contexts) are bytea of our own: JSON, zstd of it, encrypted or a reference to `flujo_blobs`. Postgres does not
-- compress them again (STORAGE EXTERNAL). Other JSON is jsonb. Columns with `_usd` in budgets are numeric, because a limit holds to the last digit.
--
-- There are no foreign keys where a merge would have to look them up; deleting a run deletes its rows in one statement (`prune_runs.sql`).
-- Indexes of attempts leave their status out, so that claims and marks of sent messages change no index entry (HOT). That is also why the
-- tables that are updated most are filled to 80 or 50 % only.
--
-- This is what a new database gets. `migrations/` brings an older one to the same, and a test compares the databases that both make.
-- `flujo_schema_version`, a row per applied migration, is made before, by `store/migrate.py`.

---------------------------------------------------------------------------------------------------------------------- runs

-- A plan, by the SHA-256 of its content.
CREATE TABLE flujo_pipelines (
    fingerprint text PRIMARY KEY,
    reference   text NOT NULL,  -- `module:attribute` of the pipeline
    name        text NOT NULL,
    version     text NOT NULL,
    plan        jsonb NOT NULL,
    hooked      boolean NOT NULL DEFAULT false,  -- whether it names any hooks; the plan may be too large to look at the end of every run
    build       text,                            -- of the user's code, as far as workers report it
    adopted_at  timestamptz,                     -- the start of the latest worker that took a run over with this plan's code: an earlier one does not take it back
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
    digest              text NOT NULL,  -- of what was enqueued: the same key with another digest is refused
    metadata            jsonb NOT NULL DEFAULT '{}',
    trace_parent        text,
    deadline_at         timestamptz,
    cancel_requested_at timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    started_at          timestamptz,
    ended_at            timestamptz,
    root                text NOT NULL DEFAULT '',    -- the address of its root scope: where its pipeline stands in the plan
    parent_run          text,
    parent_address      text,                        -- null, with a parent: a background run, for which no place waits
    aros                jsonb,                       -- the project's [aros] table when it was enqueued
    settings            jsonb,                       -- its settings when it was enqueued; null: each worker's own
    gates               jsonb,                       -- which it has to pass before its first attempt; null: none
    key_marks           text[],                      -- a mark of each key of its client: a worker with another secret under such an id takes no work
    launched_with       bytea,                       -- the context that a background run began with, to begin again from
    retry_of            text,                        -- the background run that this one starts again
    retries             integer NOT NULL DEFAULT 0,
    forked_from         text,
    from_step           text,
    retried_as          text,                        -- the latest run that retried this one after its end
    parked_for          jsonb,                       -- the step whose conversation was held with other code; null: parked for its plan
    unparked_by         text,                        -- the worker that let it continue
    parked              jsonb,                       -- why it is, or was when it ended: `kind`, `what`, `at`
    failed_key          text,                        -- of the attempt whose error ended it, in this run or a child run; null: none
    replaced_by         text,                        -- the run that it was cancelled for
    CHECK ((ended_at IS NULL) = (status IN ('queued', 'running', 'parked'))),
    UNIQUE (tenant, idempotency_key)
);
ALTER TABLE flujo_runs ALTER COLUMN launched_with SET STORAGE EXTERNAL;
CREATE INDEX flujo_runs_recent ON flujo_runs (created_at DESC);
CREATE INDEX flujo_runs_live ON flujo_runs (status, created_at) WHERE status IN ('queued', 'running', 'parked');
-- What sweeps stop: cancelled runs, and those whose deadline is over.
CREATE INDEX flujo_runs_cancelled ON flujo_runs (cancel_requested_at) WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL;
CREATE INDEX flujo_runs_deadlines ON flujo_runs (deadline_at) WHERE deadline_at IS NOT NULL AND ended_at IS NULL;
-- The next runs of a pipeline are expected to cost as much as the latest ones.
CREATE INDEX flujo_runs_reference ON flujo_runs (reference, created_at DESC);
CREATE INDEX flujo_runs_started ON flujo_runs (started_at DESC);
-- The runs that people look for are few among many that succeeded.
CREATE INDEX flujo_runs_unsuccessful ON flujo_runs (created_at DESC) WHERE status IN ('failed', 'cancelled', 'expired');
-- For the live child runs of a place, and for the spend of child runs.
CREATE INDEX flujo_runs_children ON flujo_runs (parent_run, parent_address) WHERE parent_run IS NOT NULL;
CREATE INDEX flujo_runs_background ON flujo_runs (created_at DESC) WHERE parent_run IS NOT NULL AND parent_address IS NULL;
CREATE INDEX flujo_runs_forked ON flujo_runs (forked_from) WHERE forked_from IS NOT NULL;
CREATE UNIQUE INDEX flujo_runs_retry ON flujo_runs (retry_of) WHERE retry_of IS NOT NULL;
-- Retention: a pipeline's runs of one status that are old enough.
CREATE INDEX flujo_runs_ended ON flujo_runs (name, status, ended_at) WHERE ended_at IS NOT NULL AND parent_run IS NULL;
-- Traces are exported in the order of their ends: these indexes only grow at their right edge (ADR 55).
CREATE INDEX flujo_runs_export ON flujo_runs (ended_at) WHERE status IN ('succeeded', 'failed', 'cancelled', 'expired');

CREATE TABLE flujo_scopes (
    run_id    text NOT NULL,
    address   text NOT NULL,
    parent    text,             -- the address of the scope around it; null: the root
    kind      text NOT NULL DEFAULT 'sequence',  -- or the container's: loop, parallel, …
    step      text,
    name      text,
    place     integer NOT NULL DEFAULT 0,        -- among its siblings, in declared order: joins merge in it
    status    text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'succeeded', 'failed', 'cancelled')),
    cursor    integer NOT NULL DEFAULT 0,        -- which node of its sequence, or which iteration, is next
    version   integer NOT NULL DEFAULT 0,        -- of its last merge, from that one's claim
    output    bytea NOT NULL,
    context   bytea,
    patch     bytea,                             -- what a closed branch changed in its copy of the context, for the join
    lanes     jsonb NOT NULL DEFAULT '{}',       -- the lane of each fan-out around it that it runs in, by the fan-out's address
    waiting   boolean NOT NULL DEFAULT false,    -- a fan-out whose children must close before its join
    aborted   boolean NOT NULL DEFAULT false,    -- a fan-out that closes without the rest of its branches
    held      boolean NOT NULL DEFAULT false,    -- a branch that waits for a lane
    error     jsonb,
    metadata  jsonb NOT NULL DEFAULT '{}',
    closed_by text,                              -- the key of the attempt that closed it, or why it was closed from outside
    opened_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    PRIMARY KEY (run_id, address)
) WITH (fillfactor = 80);
ALTER TABLE flujo_scopes ALTER COLUMN context SET STORAGE EXTERNAL, ALTER COLUMN output SET STORAGE EXTERNAL, ALTER COLUMN patch SET STORAGE EXTERNAL;
-- Children in their order, for joins; whether one is open, and which waits for a lane, without reading all the others.
CREATE INDEX flujo_scopes_children ON flujo_scopes (run_id, parent, place) WHERE parent IS NOT NULL;
CREATE INDEX flujo_scopes_open ON flujo_scopes (run_id, parent) WHERE status = 'open' AND parent IS NOT NULL;
CREATE INDEX flujo_scopes_held ON flujo_scopes (run_id, parent, place) WHERE held;
CREATE INDEX flujo_scopes_waiting ON flujo_scopes (opened_at) WHERE waiting AND status = 'open';
CREATE INDEX flujo_scopes_aborted ON flujo_scopes (run_id) WHERE aborted;
CREATE INDEX flujo_scopes_export ON flujo_scopes (closed_at) WHERE closed_at IS NOT NULL;

CREATE TABLE flujo_attempts (
    key          text PRIMARY KEY,  -- of run, address, step and number
    run_id       text NOT NULL,
    address      text NOT NULL,
    step         text NOT NULL,
    number       integer NOT NULL CHECK (number >= 1),
    kind         text NOT NULL DEFAULT 'step' CHECK (kind IN ('step', 'start', 'join', 'resume')),  -- resume: a question to a person, or the wait for an event
    status       text NOT NULL DEFAULT 'ready'
                 CHECK (status IN ('ready', 'queued', 'running', 'succeeded', 'failed', 'paused', 'cancelled')),
    reason       text,
    waits_for    text,                            -- what made it return to its row, as in `breaker openai:gpt-5`; of no meaning once it runs
    waits_since  timestamptz,                     -- since when it does, however often it has asked again
    queue        text NOT NULL,
    available_at timestamptz NOT NULL DEFAULT now(),  -- of a question: when it expires; infinity: it waits for a lane
    sent_at      timestamptz,
    sends        integer NOT NULL DEFAULT 0,
    fence        integer NOT NULL DEFAULT 0,      -- the number of claims
    claim_id     uuid,                            -- of the latest claim
    worker       text,
    room         text,                            -- of the latest claim: `alone` in its worker, `apart` in a process of its own; null: beside others
    alone        boolean NOT NULL DEFAULT false,  -- the claim shares its process with no other, so its loss counts as its own
    losses       integer NOT NULL DEFAULT 0,      -- of its process or lease while it ran
    losses_alone integer NOT NULL DEFAULT 0,      -- of these, its own; the others may be a neighbour's fault (ADR 13)
    loss         jsonb,                           -- the latest of them: `worker`, `how`, `at`
    suspicions   integer NOT NULL DEFAULT 0,      -- of processes that were found broken, and ended themselves, while it ran beside others
    guidance     text,                            -- what was wrong with the answer of the attempt before
    units_from   integer,                         -- the number of the attempt whose units it shares; null: its own
    pauses       integer NOT NULL DEFAULT 0,      -- the number of attempts before it that ended with a question: they are no tries
    question     jsonb,                           -- to a person, or the `event` it waits for; it stays when that is answered
    answers      jsonb,                           -- of user code and rows, when its outcome was decided: a replay needs neither
    code         text,                            -- the version that it ran with: `flujo_code.digest`
    input        bytea,                           -- of one that failed
    output       bytea,
    answer       text,                            -- of the model, if it was refused
    error        jsonb,
    metadata     jsonb,
    latency_s    double precision,
    created_at   timestamptz NOT NULL DEFAULT now(),
    started_at   timestamptz,
    ended_at     timestamptz,
    -- Queries for live attempts look for a missing end.
    CONSTRAINT flujo_attempts_ended CHECK ((ended_at IS NULL) = (status IN ('ready', 'queued', 'running', 'paused')))
) WITH (fillfactor = 80);
ALTER TABLE flujo_attempts ALTER COLUMN input SET STORAGE EXTERNAL, ALTER COLUMN output SET STORAGE EXTERNAL;
-- An attempt owns its scope: in each scope at most one has not ended, be it live or a question.
CREATE UNIQUE INDEX flujo_attempts_owner ON flujo_attempts (run_id, address) WHERE ended_at IS NULL;
CREATE INDEX flujo_attempts_live ON flujo_attempts (available_at) WHERE ended_at IS NULL;
-- Questions that expire. One that is answered and not yet worked on has both, too.
CREATE INDEX flujo_attempts_asked ON flujo_attempts (available_at) WHERE question IS NOT NULL AND ended_at IS NULL;
CREATE INDEX flujo_attempts_questions ON flujo_attempts (run_id) WHERE kind = 'resume';
CREATE INDEX flujo_attempts_run ON flujo_attempts (run_id);
-- What ended lately, for metrics and traces.
CREATE INDEX flujo_attempts_recent ON flujo_attempts (ended_at) WHERE ended_at IS NOT NULL;

-- The context that each top-level step of a run began with, to retry from there. A null context is the one that the step before began with.
CREATE TABLE flujo_contexts (
    run_id  text NOT NULL,
    place   integer NOT NULL,
    context bytea,
    PRIMARY KEY (run_id, place)
);
ALTER TABLE flujo_contexts ALTER COLUMN context SET STORAGE EXTERNAL;

-- A large value, by its digest; `touched_at` is renewed whenever it is referred to again.
CREATE TABLE flujo_blobs (
    digest     text PRIMARY KEY,
    body       bytea NOT NULL,
    touched_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE flujo_blobs ALTER COLUMN body SET STORAGE EXTERNAL;

-- The actions of people, and events that were sent to runs. A question has one answer: if two arrive at once, only one of them is recorded. An event
-- becomes the answer of the step that gets it.
CREATE TABLE flujo_inputs (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id   text NOT NULL,
    kind     text NOT NULL CHECK (kind IN ('answer', 'cancel', 'retry', 'fork', 'event')),  -- the note of a retry and a fork is the id of the new run
    attempt  text,
    address  text,
    step     text,
    actor    text,
    note     text,
    answer   bytea,
    at       timestamptz NOT NULL DEFAULT now(),
    acted_at timestamptz,
    name     text,  -- of an event, whose note is its id
    digest   text   -- of its value: the same id with another one is refused
);
CREATE INDEX flujo_inputs_run ON flujo_inputs (run_id);
CREATE UNIQUE INDEX flujo_inputs_answer ON flujo_inputs (attempt) WHERE kind = 'answer';
CREATE UNIQUE INDEX flujo_inputs_event ON flujo_inputs (run_id, name, note) WHERE name IS NOT NULL;
CREATE INDEX flujo_inputs_buffered ON flujo_inputs (run_id, name, id) WHERE kind = 'event' AND acted_at IS NULL;

-- The hook calls that follow a commit that ended a run or opened a question; deleted once they were made (ADR 22).
CREATE TABLE flujo_hook_calls (
    run_id       text NOT NULL,
    payload      text NOT NULL CHECK (payload IN ('post_run', 'on_pause_requested')),
    attempt      text NOT NULL DEFAULT '',
    worker       text,
    alone        boolean NOT NULL DEFAULT false,  -- as with attempts
    tries        integer NOT NULL DEFAULT 0,      -- how many workers it was lost with
    losses_alone integer NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, payload, attempt)
);

-- Summaries of runs that retention deletes, if `retention.keep_summaries` is set (ADR 40).
CREATE TABLE flujo_deleted_runs (
    id         text PRIMARY KEY,
    name       text NOT NULL,
    tenant     text NOT NULL,
    status     text NOT NULL,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    ended_at   timestamptz NOT NULL,
    parent_run text,
    tokens     bigint NOT NULL,
    cost_usd   double precision NOT NULL
);
-- The newest are listed first, and the oldest are deleted first.
CREATE INDEX flujo_deleted_runs_ended ON flujo_deleted_runs (ended_at);

------------------------------------------------------------------------------------------------------------------- workers

-- One worker process under one lease.
CREATE TABLE flujo_workers (
    id                text PRIMARY KEY,
    host              text NOT NULL,
    pid               integer NOT NULL,
    build             text NOT NULL,                -- the version of Flujo Worker
    code_build        text,                         -- of the user's code
    schema            integer,                      -- what its code knows: a migration that does not fit this code waits for the worker's end
    slots             integer NOT NULL,
    queues            text[],                       -- that it consumes
    plans             text[] NOT NULL DEFAULT '{}', -- whose code it has loaded
    lease_until       timestamptz NOT NULL,
    started_at        timestamptz NOT NULL DEFAULT now(),
    stop_requested_at timestamptz,
    ended_at          timestamptz
) WITH (fillfactor = 50);

-- Each start of a broker without its content: what was sent before is sent again.
CREATE TABLE flujo_broker_epochs (
    epoch      text PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now()
);

-- One row. The process that moves one of its times does that work for the fleet: so a fleet of any size works at one pace.
CREATE TABLE flujo_sweeps (
    id            boolean PRIMARY KEY DEFAULT true CHECK (id),
    worker        text,
    swept_at      timestamptz NOT NULL DEFAULT '-infinity',
    -- No attempt that is under way was due before `live_since`; `looked_at`: since when that holds for all rows. Sweeps and renewals begin to look
    -- there: index entries of what has ended stay in front of it while there is an old snapshot.
    live_since    timestamptz NOT NULL DEFAULT '-infinity',
    looked_at     timestamptz NOT NULL DEFAULT '-infinity',
    pruned_at     timestamptz NOT NULL DEFAULT '-infinity',
    -- The search for blobs that nothing refers to: when the latest began, up to which run it has marked what is in use, and up to which blob it
    -- has deleted what is not; null: done.
    marking_since timestamptz NOT NULL DEFAULT '-infinity',
    marked_to     text,
    swept_to      text,
    tallied_to    timestamptz NOT NULL DEFAULT now()  -- what ended before is in `flujo_tallies`
);
INSERT INTO flujo_sweeps DEFAULT VALUES;

-- One row: which worker exports traces, and up to where each kind of row has been sent (ADR 55).
CREATE TABLE flujo_exports (
    id        boolean PRIMARY KEY DEFAULT true CHECK (id),
    worker    text,
    looked_at timestamptz,                  -- when it looked last; null: never
    positions jsonb NOT NULL DEFAULT '{}',  -- of run, scope, attempt and unit: the end and the key of the last one that was sent
    refused   bigint NOT NULL DEFAULT 0,    -- spans that the collector has refused for good
    lost      bigint NOT NULL DEFAULT 0     -- runs that retention has deleted before they were sent
);
INSERT INTO flujo_exports DEFAULT VALUES;

-- One report for each slot of time, as it was written: `jsonb` would lose the order of its keys.
CREATE TABLE flujo_health_reports (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT now(),
    slot   timestamptz,
    report json NOT NULL
);
CREATE UNIQUE INDEX flujo_health_reports_slot ON flujo_health_reports (slot);

--------------------------------------------------------------------------------------------------------------------- units

-- What durable attempts have asked and been answered: a row for each model request, tool call and durable operation (ADR 53). Attempts that
-- share a place read each other's: those of later claims, after a person's answer, and after an outage.
CREATE TABLE flujo_units (
    run_id        text NOT NULL,
    place         text NOT NULL,     -- address, step and number of the first of the attempts that share it; of an effect without the number
    digest        bytea NOT NULL,    -- of what is asked, and of what it is asked for
    nth           integer NOT NULL,  -- among equal ones, from 0
    operation     text NOT NULL,
    effect        text CHECK (effect IN ('keyed', 'once')),  -- null: it may be repeated
    key           text NOT NULL,     -- of the attempt that began it last, under this claim
    fence         integer NOT NULL,
    claim_id      uuid NOT NULL,
    tries         integer NOT NULL DEFAULT 1,  -- how many claims have begun it: each but the last may have had it done, and paid for it
    began_at      timestamptz NOT NULL DEFAULT now(),
    asked         bytea,             -- who asks, and the parts of a request, each with a short digest: to say what has changed
    settled_at    timestamptz,
    answer        bytea,
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    requests      integer NOT NULL DEFAULT 0,
    cost_usd      double precision NOT NULL DEFAULT 0,
    model         text,
    PRIMARY KEY (run_id, place, digest, nth)
) WITH (fillfactor = 80);
ALTER TABLE flujo_units ALTER COLUMN answer SET STORAGE EXTERNAL;
CREATE INDEX flujo_units_export ON flujo_units (settled_at) WHERE settled_at IS NOT NULL;

-- Requests of durable steps that providers answer in batches (ADR 56).
CREATE TABLE flujo_batches (
    id       uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    pool     text NOT NULL,     -- a digest of the provider, its endpoint and credential, and the model
    key      text,              -- of the attempt that has it in hand, while that runs under this claim
    claim_id uuid,
    began_at timestamptz NOT NULL DEFAULT now(),
    due_at   timestamptz NOT NULL,  -- when it is looked at next
    handle   jsonb              -- what the provider calls it; null: it is announced, and possibly submitted
);
CREATE INDEX flujo_batches_due ON flujo_batches (pool, due_at);

CREATE TABLE flujo_batch_requests (
    id       text PRIMARY KEY,  -- a digest of its unit's id
    run_id   text NOT NULL,
    place    text NOT NULL,
    pool     text NOT NULL,
    batch    uuid,              -- null: it waits for others
    asked_at timestamptz NOT NULL DEFAULT now(),
    live_at  timestamptz NOT NULL,  -- from then on it is asked live
    size     integer NOT NULL,
    body     bytea,             -- until there is a result
    result   bytea
);
CREATE INDEX flujo_batch_requests_waiting ON flujo_batch_requests (pool, asked_at) WHERE batch IS NULL AND result IS NULL;
CREATE INDEX flujo_batch_requests_batch ON flujo_batch_requests (batch) WHERE batch IS NOT NULL;
CREATE INDEX flujo_batch_requests_run ON flujo_batch_requests (run_id, place);

-------------------------------------------------------------------------------------------------------------------- limits

-- The spend, once per claim, whether or not its outcome was merged. What a claim has paid for units has a row of its own, which each answer adds to.
CREATE TABLE flujo_spends (
    key           text NOT NULL,
    fence         integer NOT NULL,  -- 0: of the units of that claim
    claim_id      uuid NOT NULL,  -- zero: without a claim of its own
    run_id        text NOT NULL,
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    requests      integer NOT NULL DEFAULT 0,
    cost_usd      double precision NOT NULL DEFAULT 0,
    model         text,           -- that it was for; null: several, or none
    at            timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (key, fence, claim_id)
);
CREATE INDEX flujo_spends_run ON flujo_spends (run_id);

-- The budget of a run, or of a tenant on one day. An overrun of a call is booked apart: settled + reserved never passes the limit.
CREATE TABLE flujo_budgets (
    scope           text PRIMARY KEY,
    limit_usd       numeric,
    limit_tokens    bigint,
    settled_usd     numeric NOT NULL DEFAULT 0,
    settled_tokens  bigint NOT NULL DEFAULT 0,
    reserved_usd    numeric NOT NULL DEFAULT 0,
    reserved_tokens bigint NOT NULL DEFAULT 0,
    overrun_usd     numeric NOT NULL DEFAULT 0,
    overrun_tokens  bigint NOT NULL DEFAULT 0,
    CHECK (limit_usd IS NULL OR settled_usd + reserved_usd <= limit_usd),
    CHECK (limit_tokens IS NULL OR settled_tokens + reserved_tokens <= limit_tokens)
);
-- `flujo status` and the metrics show which tenants are near their limit of today; most budgets are of runs, or of other days.
CREATE INDEX flujo_budgets_today ON flujo_budgets (right(scope, 11)) WHERE starts_with(scope, 'tenant:');

-- One row for each budget that an attempt reserved from. It stays when the reservation is released, so that a later outcome is still booked; a
-- refused attempt has one too, which holds nothing.
CREATE TABLE flujo_reservations (
    key           text NOT NULL,
    scope         text NOT NULL,
    run_id        text NOT NULL,
    usd           numeric NOT NULL,
    tokens        bigint NOT NULL,
    held          boolean NOT NULL DEFAULT true,
    before_usd    numeric,  -- the budget's remainder before; null: no limit
    before_tokens bigint,
    PRIMARY KEY (key, scope)
);
CREATE INDEX flujo_reservations_held ON flujo_reservations (run_id) WHERE held;

-- Admission of runs (ADR 43); a run without gates has a row in none of these three. A gate is locked while it is decided who passes.
CREATE TABLE flujo_gates (
    name       text PRIMARY KEY,
    turns      jsonb NOT NULL DEFAULT '{}',  -- how far each of its queues has come
    touched_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- An admitted run holds a place until its end, or until a time.
CREATE TABLE flujo_gate_places (
    gate      text NOT NULL,
    run_id    text NOT NULL,
    is_window boolean NOT NULL DEFAULT false,
    until     timestamptz,
    PRIMARY KEY (gate, run_id)
);
CREATE INDEX flujo_gate_places_run ON flujo_gate_places (run_id);

-- A recorded run that was not admitted, in one queue (`flow`) of the gate that had no room when it was last looked at.
CREATE TABLE flujo_waiting_runs (
    run_id     text PRIMARY KEY,
    key        text NOT NULL,  -- of its first attempt
    gate       text NOT NULL,
    flow       text NOT NULL,
    most       integer,
    priority   smallint NOT NULL,
    arrived    bigint GENERATED ALWAYS AS IDENTITY,
    not_before timestamptz  -- null once it waits for no time
);
-- Sweeps read those whose time has come, in their order, however many wait for theirs.
CREATE INDEX flujo_waiting_runs_due ON flujo_waiting_runs (gate, flow, (coalesce(not_before, '-infinity')), priority, arrived);

-- Concurrency limits of steps. A request for a permit locks the row of its limit; the last one to ask sets `at_once`.
CREATE TABLE flujo_limits (
    name     text PRIMARY KEY,
    at_once  integer NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT now()
);

-- An attempt that has requested a permit: under `fence` it was let through, without one it waits. A permit is in use only while its attempt runs under that
-- fence and the lease of its worker lasts, so nothing has to return it.
CREATE TABLE flujo_permits (
    key        text PRIMARY KEY,
    name       text NOT NULL,
    turn       bigint GENERATED ALWAYS AS IDENTITY,
    fence      integer,
    offered_at timestamptz  -- when a waiting attempt was last sent, to ask again
);
CREATE INDEX flujo_permits_held ON flujo_permits (name) WHERE fence IS NOT NULL;
CREATE INDEX flujo_permits_waiting ON flujo_permits (name, turn) WHERE fence IS NULL;

-- The fleet's settings of circuit breakers and rate limits (ADR 36), which operators change while runs are under way.
CREATE TABLE flujo_model_guards (
    guard      text NOT NULL,  -- breaker or rate
    model      text NOT NULL,  -- a model's name, or a pattern of names
    from_file  jsonb,          -- from the settings file of the worker that was started last; null: nothing
    edits      jsonb,          -- what operators have set over it; null: nothing
    cleared_at timestamptz,    -- when an operator last closed the breaker or ended the slow-down
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (guard, model)
);

-- Pipelines that run at certain times: a sweep fires a slot by enqueueing a run whose id is that of the slot (ADR 60).
CREATE TABLE flujo_schedules (
    name          text PRIMARY KEY,
    reference     text NOT NULL,
    fingerprint   text NOT NULL,       -- of the plan as it was added, which has the text of a blueprint
    body          bytea NOT NULL,      -- the input and the options of its runs
    timing        jsonb NOT NULL,      -- cron or every_s, zone, jitter_s, until
    tenant        text NOT NULL,
    overlap       text NOT NULL,
    catch_up      text NOT NULL,
    is_paused     boolean NOT NULL DEFAULT false,
    slot_at       timestamptz,         -- the next slot; null: there is none
    due_at        timestamptz,         -- when that fires: with its jitter, or after an error
    last_slot     timestamptz,         -- the latest that fired or was given up, and its run
    last_run      text,
    last_error    text,
    failing_since timestamptz,         -- since when the next slot fails
    changed_at    timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE flujo_schedules ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX flujo_schedules_due ON flujo_schedules (due_at) WHERE NOT is_paused;

---------------------------------------------------------------------------------------------------------------------- code

-- A version of code, stored when a process first performs a step with it, and never changed.
CREATE TABLE flujo_code (
    digest     text PRIMARY KEY,
    parts      jsonb NOT NULL,
    texts      jsonb,  -- of parts that are not functions, such as prompts: shortened and redacted
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The present version of each step of a plan that a worker has met, by its path; overwritten by the next deploy.
CREATE TABLE flujo_step_code (
    fingerprint text NOT NULL,
    path        text NOT NULL,
    code        text NOT NULL,
    PRIMARY KEY (fingerprint, path)
);

-- The fields that a context model has had: so that a run whose context was written with other fields is known.
CREATE TABLE flujo_context_fields (
    model      text NOT NULL,
    digest     text NOT NULL,
    fields     jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, digest)
);

-- A row for each accepted repair of a model's output, if the project turns the ledger on; under the names that its readers know (M-178).
CREATE TABLE flujo_correction_ledger (
    id                      bigint GENERATED ALWAYS AS IDENTITY,
    timestamp               timestamptz NOT NULL DEFAULT now(),
    run_id                  text NOT NULL REFERENCES flujo_runs ON DELETE CASCADE,
    attempt                 text NOT NULL,
    fence                   integer NOT NULL,
    step_name               text NOT NULL,
    agent_id                text,
    provider_model          text,
    schema_hash             text,
    coercion_policy_version text NOT NULL,
    stage                   text NOT NULL,
    repair_depth            integer NOT NULL,
    transforms_applied      jsonb NOT NULL,
    latency_ms_saved        double precision NOT NULL,
    PRIMARY KEY (run_id, id)
);
CREATE INDEX flujo_correction_ledger_recent ON flujo_correction_ledger (timestamp);

-------------------------------------------------------------------------------------------------------------------- events

-- Ids are drawn before their transactions commit, so the higher of two ids may be seen first, and a reader that continues from it would
-- miss the lower one. A transaction's number is drawn at its first write: once all below one have ended, nothing comes before it any more.
CREATE TABLE flujo_events (
    id         bigint GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL DEFAULT now(),
    run_id     text,
    attempt    text,
    fence      integer,
    name       text NOT NULL,
    level      text NOT NULL DEFAULT 'info',
    data       jsonb NOT NULL DEFAULT '{}',
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    written_at timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (at);
CREATE TABLE flujo_events_default PARTITION OF flujo_events DEFAULT;
CREATE INDEX flujo_events_story ON flujo_events (run_id, xid, id);
-- The health check counts dropped events, and `flujo status` shows which breakers are open, without a look at all the others.
CREATE INDEX flujo_events_dropped ON flujo_events (at) WHERE name = 'events.dropped';
CREATE INDEX flujo_events_breakers ON flujo_events (at) WHERE name IN ('flujo.breaker.opened', 'flujo.breaker.half_open', 'flujo.breaker.closed');

-- Make partitions of days, and drop those that are over.
--   first, last   the days to have a partition for, counted from today. Under running workers never today, nor a day that might begin
--                 meanwhile: a transaction that has chosen the default partition for an event, and waits for its lock, fails then
--   keep          days for which events are kept; null: for ever
-- A day that has events in the default partition already stays there. If the tables are locked, the next call does the rest.
CREATE FUNCTION flujo_keep_event_partitions(first integer, last integer, keep integer) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '500ms' SET TimeZone = 'UTC' AS $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    day date;
    part text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('flujo_event_partitions')) THEN
        RETURN;
    END IF;
    FOR day IN SELECT today + n FROM generate_series(first, last) AS n LOOP
        part := 'flujo_events_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(part) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE %I (LIKE flujo_events INCLUDING DEFAULTS)', part);
            EXECUTE format('ALTER TABLE flujo_events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, day::timestamptz, (day + 1)::timestamptz);
        EXCEPTION
            WHEN check_violation THEN NULL;
            WHEN lock_not_available THEN RETURN;
        END;
    END LOOP;
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'flujo_events'::regclass AND c.relname ~ '^flujo_events_\d{8}$'
          AND to_date(right(c.relname, 8), 'YYYYMMDD') < today - keep
        ORDER BY 1
    LOOP
        BEGIN
            EXECUTE format('DROP TABLE %I', part);
        EXCEPTION
            WHEN lock_not_available THEN RETURN;
        END;
    END LOOP;
    DELETE FROM flujo_events_default WHERE at < (today - keep)::timestamptz;
END
$$;

-- Today too: there are no writers of events yet.
SELECT flujo_keep_event_partitions(0, 7, NULL);

------------------------------------------------------------------------------------------------------- functions, triggers

-- Undoes the statement that calls it: a merge whose attempt was ours, but whose scope or run was not as the decision had seen it.
CREATE FUNCTION flujo_undo() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the merge was not whole' USING ERRCODE = 'FJ001';
END
$$;

-- A run with the child runs that it waits for, however deep they are: those that have a place in their parent.
CREATE FUNCTION flujo_kin(run text) RETURNS SETOF text LANGUAGE sql STABLE ROWS 2 AS $$
    WITH RECURSIVE kin (id) AS (
        SELECT run UNION ALL SELECT c.id FROM kin JOIN flujo_runs c ON c.parent_run = kin.id AND c.parent_address IS NOT NULL
    )
    SELECT id FROM kin
$$;

-- A run with all its child runs, those in the background too: what is kept and deleted together.
CREATE FUNCTION flujo_family(run text) RETURNS SETOF text LANGUAGE sql STABLE ROWS 2 AS $$
    WITH RECURSIVE family (id) AS (
        SELECT run UNION ALL SELECT c.id FROM family JOIN flujo_runs c ON c.parent_run = family.id
    )
    SELECT id FROM family
$$;

-- Whether a live run is shown as paused, which is in no row: a question is open, here or in a child run, and only work that waits for a lane
-- could run.
CREATE FUNCTION flujo_is_paused(run text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM flujo_kin(run) k JOIN flujo_attempts a ON a.run_id = k WHERE a.ended_at IS NULL AND a.status = 'paused')
       AND NOT EXISTS (
           SELECT FROM flujo_kin(run) k JOIN flujo_attempts a ON a.run_id = k
           WHERE a.ended_at IS NULL AND a.status IN ('ready', 'queued', 'running') AND (a.status <> 'ready' OR a.available_at < 'infinity'))
$$;

-- What a run waits for that was not admitted yet, in words; null for any other.
CREATE FUNCTION flujo_waits_for(run text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT w.gate || coalesce(': ' || (
        SELECT count(*) FROM flujo_gate_places p WHERE p.gate = w.gate AND (p.until IS NULL OR p.until > now())
    ) || ' of ' || w.most || ' places are taken', '')
    FROM flujo_waiting_runs w WHERE w.run_id = run
$$;

-- Hooks to be called are recorded by the commit that ends a run or opens a question, whatever statement it is.
CREATE FUNCTION flujo_owe_post_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO flujo_hook_calls (run_id, payload)
    SELECT NEW.id, 'post_run' FROM flujo_pipelines p WHERE p.fingerprint = NEW.fingerprint AND p.hooked
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE FUNCTION flujo_owe_pause() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO flujo_hook_calls (run_id, payload, attempt)
    SELECT r.id, 'on_pause_requested', NEW.key FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint
    WHERE r.id = NEW.run_id AND p.hooked AND NEW.question ->> 'event' IS NULL  -- nobody is asked for an event
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE TRIGGER flujo_run_ended AFTER UPDATE OF ended_at ON flujo_runs
    FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION flujo_owe_post_run();
CREATE TRIGGER flujo_question_opened AFTER INSERT ON flujo_attempts
    FOR EACH ROW WHEN (NEW.status = 'paused') EXECUTE FUNCTION flujo_owe_pause();

-- A role that may not delete runs, such as `flujo_client`, may only request the end of a live run: once, with a reason, and as failed only for
-- a background run without activity. After the end it may only write which run retried this one.
CREATE FUNCTION flujo_keep_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT has_table_privilege(TG_RELID, 'DELETE') THEN
        RAISE EXCEPTION 'permission denied: run % has ended, or this is more than a request to cancel it', OLD.id USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER flujo_keep_end BEFORE UPDATE OF cancel_requested_at, reason, error, retried_as, replaced_by ON flujo_runs FOR EACH ROW
    WHEN (((OLD.cancel_requested_at, OLD.reason, OLD.error, OLD.replaced_by) IS DISTINCT FROM
           (NEW.cancel_requested_at, NEW.reason, NEW.error, NEW.replaced_by) AND (
               OLD.ended_at IS NOT NULL OR NEW.cancel_requested_at IS NULL OR OLD.cancel_requested_at <> NEW.cancel_requested_at
               OR (OLD.error IS DISTINCT FROM NEW.error AND (
                       OLD.cancel_requested_at IS NOT NULL OR OLD.parent_run IS NULL OR OLD.parent_address IS NOT NULL
                       OR NEW.error ->> 'code' IS DISTINCT FROM 'BACKGROUND_STALE'))))
          OR (OLD.ended_at IS NULL AND OLD.retried_as IS DISTINCT FROM NEW.retried_as))
    EXECUTE FUNCTION flujo_keep_end();

----------------------------------------------------------------------------------------------------------- spans and traces

-- The trace for readers of SQL and for exporters: one row for each span, and one for each run. Spans are where `RunHandle.trace()` shows them,
-- under ids made of their places, so that a delivery that is repeated overwrites its span and adds none (M-292). With `WHERE run_id = …`
-- these views read that run's rows only.

-- The node of a run that an attempt works at: `<sequence>/<step>`.
CREATE FUNCTION flujo_node(address text, step text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN address = '' THEN step ELSE address || '/' || step END
$$;

-- The span at an address; a run's root scope is the run itself.
CREATE FUNCTION flujo_span(run text, root text, address text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN address IS NULL OR address = root THEN run ELSE run || ':' || address END
$$;

CREATE FUNCTION flujo_seconds(began timestamptz, ended timestamptz) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN ended IS NOT NULL THEN greatest(0, extract(epoch FROM ended - began))::float8 END
$$;

-- A number in a log line, or nothing: a line under one of our names may contain anything.
CREATE FUNCTION flujo_number(value jsonb) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'number' THEN value::float8 END
$$;

-- Runs, containers, steps and attempts: what has a row.
CREATE VIEW flujo_row_spans (run_id, span_id, parent_span_id, name, kind, status, started_at, ended_at, duration_s, attributes) AS
-- runs; a child run's parent is the container of the other run that it was begun at
SELECT r.id, r.id,
       CASE WHEN r.parent_run IS NOT NULL THEN flujo_span(r.parent_run, '', coalesce(r.parent_address, (
           SELECT s.address FROM flujo_scopes s WHERE s.run_id = r.parent_run AND s.metadata ->> 'child_run' = r.id LIMIT 1))) END,
       r.name, 'run', v.status, r.created_at, r.ended_at, flujo_seconds(r.created_at, r.ended_at),
       jsonb_strip_nulls(jsonb_build_object(
           'flujo.run_id', r.id,
           'flujo.pipeline.name', r.name,
           'flujo.pipeline.version', p.version,
           'flujo.budget.initial_cost_usd', r.limits #> '{limits,total_cost_usd_limit}',
           'flujo.budget.initial_tokens', r.limits #> '{limits,total_tokens_limit}',
           'flujo.is_background', CASE WHEN r.parent_run IS NOT NULL AND r.parent_address IS NULL THEN true END,
           'success', CASE WHEN r.ended_at IS NOT NULL THEN r.status = 'succeeded' END,
           'feedback', coalesce(r.error ->> 'feedback', r.reason)))
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint
CROSS JOIN LATERAL (SELECT CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status) v
UNION ALL
-- containers, and their children: iterations, branches, paths; what a run's end left open ended with it
SELECT s.run_id, flujo_span(s.run_id, r.root, s.address), flujo_span(s.run_id, r.root, s.parent), coalesce(nullif(s.name, ''), s.address),
       CASE WHEN s.kind <> 'sequence' THEN s.kind ELSE
           CASE (SELECT b.kind FROM flujo_scopes b WHERE b.run_id = s.run_id AND b.address = s.parent)
               WHEN 'loop' THEN 'iteration' WHEN 'map' THEN 'item' WHEN 'parallel' THEN 'branch' WHEN 'router' THEN 'branch'
               WHEN 'conditional' THEN 'path' WHEN 'nested' THEN 'body' WHEN 'machine' THEN 'state' WHEN 'fallback' THEN 'body'
               WHEN 'cache' THEN 'body' ELSE 'child' END END,
       CASE WHEN s.status <> 'open' THEN s.status WHEN r.ended_at IS NULL THEN 'running' ELSE r.status END,
       b.at, s.closed_at, flujo_seconds(b.at, s.closed_at),
       jsonb_strip_nulls(s.metadata - 'feedback' - 'cache_hit' - 'is_background' || jsonb_build_object(
           'flujo.step.id', s.address,
           'flujo.step.type', CASE WHEN s.kind <> 'sequence' THEN s.kind END,
           'flujo.step.policy', CASE WHEN s.kind <> 'sequence' THEN s.kind END,
           'flujo.cache.hit', s.metadata -> 'cache_hit',
           'flujo.is_background', s.metadata -> 'is_background',
           'success', CASE WHEN s.status <> 'open' THEN s.status = 'succeeded' END,
           'latency_s', flujo_seconds(b.at, s.closed_at),
           'feedback', coalesce(s.error -> 'feedback', s.metadata -> 'feedback')))
FROM flujo_scopes s JOIN flujo_runs r ON r.id = s.run_id
CROSS JOIN LATERAL (
    SELECT CASE WHEN s.kind <> 'router' THEN s.opened_at ELSE least(s.opened_at, (
        SELECT min(a.created_at) FROM flujo_attempts a
        WHERE a.run_id = s.run_id AND a.kind IN ('step', 'resume') AND flujo_node(a.address, a.step) = s.address)) END AS at
) b
WHERE s.address <> r.root
UNION ALL
-- steps, and containers that are about to begin, which have no scope yet
SELECT n.run_id, n.run_id || ':' || n.node, flujo_span(n.run_id, r.root, n.address), n.step, n.kind, n.status, n.began, n.ended,
       CASE WHEN n.kind = 'step' THEN flujo_seconds(n.began, n.ended) END,
       jsonb_strip_nulls(jsonb_build_object(
           'flujo.step.id', n.node,
           'flujo.step.type', n.type,
           'flujo.step.policy', n.policy,
           'flujo.attempt_number', n.number,
           'success', CASE WHEN n.kind = 'step' AND n.ended IS NOT NULL THEN n.status = 'succeeded' END,
           'latency_s', n.latency_s,
           'feedback', CASE WHEN n.status <> 'succeeded' THEN n.feedback END))
FROM (
    SELECT a.run_id, a.address, a.step, flujo_node(a.address, a.step) AS node,
           CASE WHEN count(*) FILTER (WHERE w.is_try) > 0 THEN 'step' ELSE 'start' END AS kind,
           CASE WHEN bool_and(a.kind = 'resume') THEN 'human' WHEN count(*) FILTER (WHERE w.is_try) > 0 THEN 'step' END AS type,
           (array_agg(a.kind ORDER BY a.created_at DESC, a.number DESC) FILTER (WHERE w.is_try))[1] AS policy,
           max(a.number) FILTER (WHERE w.is_try) AS number,
           (array_agg(a.status ORDER BY w.is_try DESC, a.created_at DESC, a.number DESC))[1] AS status,
           (array_agg(a.created_at ORDER BY w.is_try DESC, a.created_at, a.number))[1] AS began,
           (array_agg(a.ended_at ORDER BY w.is_try DESC, a.created_at DESC, a.number DESC))[1] AS ended,
           (array_agg(coalesce(a.error ->> 'feedback', a.reason) ORDER BY w.is_try DESC, a.created_at DESC, a.number DESC))[1] AS feedback,
           sum(a.latency_s) FILTER (WHERE w.is_try) AS latency_s
    FROM flujo_attempts a
    CROSS JOIN LATERAL (SELECT a.kind IN ('step', 'resume') AS is_try) w
    WHERE NOT EXISTS (SELECT FROM flujo_scopes s WHERE s.run_id = a.run_id AND s.kind <> 'sequence' AND s.address = a.address)
      AND NOT EXISTS (
          SELECT FROM flujo_scopes s WHERE s.run_id = a.run_id AND s.kind <> 'sequence' AND s.address = flujo_node(a.address, a.step))
    GROUP BY a.run_id, a.address, a.step
) n JOIN flujo_runs r ON r.id = n.run_id
UNION ALL
-- attempts at steps, and the questions of human steps
SELECT a.run_id, a.key, a.run_id || ':' || flujo_node(a.address, a.step), 'attempt ' || a.number, 'attempt', a.status, b.at, a.ended_at,
       CASE WHEN a.ended_at IS NOT NULL THEN coalesce(a.latency_s, 0) END,
       jsonb_strip_nulls(coalesce(a.metadata, '{}') || jsonb_build_object(
           'flujo.step.id', flujo_node(a.address, a.step),
           'flujo.step.policy', a.kind,
           'flujo.attempt_number', a.number,
           'flujo.worker', a.worker,
           'flujo.deliveries', nullif(a.fence, 0),
           'flujo.budget.quota_before_usd', b.quota_before_usd,
           'flujo.budget.quota_before_tokens', b.quota_before_tokens,
           'flujo.budget.estimate_cost_usd', b.estimate_cost_usd,
           'flujo.budget.estimate_tokens', b.estimate_tokens,
           'flujo.budget.actual_cost_usd', t.cost_usd,
           'flujo.budget.actual_tokens', t.tokens,
           'success', CASE WHEN a.ended_at IS NOT NULL THEN a.status = 'succeeded' END,
           'latency_s', a.latency_s,
           'feedback', coalesce(a.error ->> 'feedback', a.reason)))
FROM flujo_attempts a
LEFT JOIN LATERAL (
    SELECT sum(x.input_tokens + x.output_tokens) AS tokens, sum(x.cost_usd) AS cost_usd FROM flujo_spends x WHERE x.key = a.key
) t ON true
LEFT JOIN LATERAL (
    SELECT coalesce(a.started_at, a.created_at) AS at, max(v.usd)::float8 AS estimate_cost_usd, max(v.tokens) AS estimate_tokens,
           min(v.before_usd)::float8 AS quota_before_usd, min(v.before_tokens) AS quota_before_tokens
    FROM flujo_reservations v WHERE v.key = a.key
) b ON true
WHERE a.kind IN ('step', 'resume');

-- Agents that were called as tools: part of an attempt, read from its events.
CREATE VIEW flujo_tool_spans (run_id, span_id, parent_span_id, name, kind, status, started_at, ended_at, duration_s, attributes) AS
SELECT c.run_id, c.attempt || '#' || c.call, c.attempt || coalesce('#' || c.within, ''), c.tool, 'tool', o.status, o.began, o.ended, o.took_s,
       jsonb_strip_nulls(jsonb_build_object(
           'flujo.step.id', flujo_node(a.address, a.step),
           'flujo.attempt_number', a.number,
           'flujo.agent', c.agent,
           'flujo.budget.actual_cost_usd', c.cost_usd,
           'flujo.budget.actual_tokens', c.tokens,
           'success', CASE WHEN o.status <> 'running' THEN o.status = 'succeeded' END,
           'latency_s', o.took_s,
           'feedback', coalesce(c.error, c.refusal)))
FROM (
    SELECT e.run_id, e.attempt, e.data ->> 'tool_call' AS call,
           max(e.data ->> 'within') FILTER (WHERE e.name = 'agent_tool.called') AS within,
           max(e.data ->> 'tool') FILTER (WHERE e.name = 'agent_tool.called') AS tool,
           max(e.data ->> 'agent') FILTER (WHERE e.name = 'agent_tool.called') AS agent,
           min(e.at) FILTER (WHERE e.name = 'agent_tool.called') AS began,
           max(e.at) FILTER (WHERE e.name IN ('agent_tool.returned', 'agent_tool.raised')) AS ended,
           max(flujo_number(e.data -> 'latency_ms')) FILTER (WHERE e.name IN ('agent_tool.returned', 'agent_tool.raised')) / 1000 AS took_s,
           max(e.data ->> 'error') FILTER (WHERE e.name = 'agent_tool.raised') AS error,
           max(e.data ->> 'message_preview') FILTER (WHERE e.name IN ('agent_tool.input_invalid', 'agent_tool.output_invalid')) AS refusal,
           sum(flujo_number(e.data -> 'input_tokens') + flujo_number(e.data -> 'output_tokens')) FILTER (WHERE e.name = 'agent.usage') AS tokens,
           sum(flujo_number(e.data -> 'cost_usd')) FILTER (WHERE e.name = 'agent.usage') AS cost_usd
    FROM flujo_events e
    WHERE e.data ? 'tool_call' AND (e.name LIKE 'agent\_tool.%' OR e.name = 'agent.usage')
    GROUP BY e.run_id, e.attempt, e.data ->> 'tool_call'
) c
JOIN flujo_attempts a ON a.key = c.attempt
-- Events have the worker's clock, attempts the database's: a call begins no earlier than its attempt.
CROSS JOIN LATERAL (
    SELECT greatest(c.began, a.started_at, a.created_at) AS began,
           CASE WHEN c.ended IS NOT NULL THEN greatest(c.ended, a.started_at, a.created_at) END AS ended,
           CASE WHEN c.ended IS NOT NULL THEN greatest(0, coalesce(c.took_s, 0)) END AS took_s,
           CASE WHEN c.ended IS NULL THEN 'running' WHEN coalesce(c.error, c.refusal) IS NULL THEN 'succeeded' ELSE 'failed' END AS status
) o
WHERE c.began IS NOT NULL AND c.tool IS NOT NULL;

-- Model calls other than the agent's: of prechecks, processors, plugins and validators. One event reports each when it ends. The number counts an
-- attempt's calls by one name, so a delivery that is repeated has the same spans.
CREATE VIEW flujo_call_spans (run_id, span_id, parent_span_id, name, kind, status, started_at, ended_at, duration_s, attributes) AS
SELECT c.run_id, c.attempt || '#' || c.call || ':' || c.place, c.attempt, c.call, 'call', 'succeeded', o.at, o.at, NULL::double precision,
       jsonb_strip_nulls(jsonb_build_object(
           'flujo.step.id', flujo_node(a.address, a.step),
           'flujo.attempt_number', a.number,
           'flujo.budget.actual_cost_usd', flujo_number(c.data -> 'cost_usd'),
           'flujo.budget.actual_tokens', coalesce(flujo_number(c.data -> 'input_tokens'), 0) + coalesce(flujo_number(c.data -> 'output_tokens'), 0),
           'success', true))
FROM (
    SELECT e.run_id, e.attempt, e.at, e.data, e.data ->> 'call' AS call,
           row_number() OVER (PARTITION BY e.run_id, e.attempt, e.data ->> 'call' ORDER BY e.id) AS place
    FROM flujo_events e
    WHERE e.name = 'agent.usage' AND e.data ->> 'call' <> 'agent' AND NOT e.data ? 'tool_call'
) c
JOIN flujo_attempts a ON a.key = c.attempt
-- Events have the worker's clock, attempts the database's: a call ends no earlier than its attempt begins.
CROSS JOIN LATERAL (SELECT greatest(c.at, a.started_at, a.created_at) AS at) o;

CREATE VIEW flujo_spans AS
SELECT * FROM flujo_row_spans UNION ALL SELECT * FROM flujo_tool_spans UNION ALL SELECT * FROM flujo_call_spans;

-- Subqueries on other rows are in the list of columns, where a LIMIT spares them.
CREATE VIEW flujo_trace AS
SELECT r.id AS run_id, r.parent_run AS parent_run_id, r.name, r.reference, p.version,
       CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status,
       r.reason, r.created_at AS started_at, r.ended_at, flujo_seconds(r.created_at, r.ended_at) AS duration_s,
       (SELECT coalesce(sum(x.input_tokens + x.output_tokens), 0)::bigint FROM flujo_kin(r.id) k JOIN flujo_spends x ON x.run_id = k) AS tokens,
       (SELECT coalesce(sum(x.cost_usd), 0)::float8 FROM flujo_kin(r.id) k JOIN flujo_spends x ON x.run_id = k) AS cost_usd,
       (SELECT count(*) FROM flujo_spans s WHERE s.run_id = r.id) AS spans,
       r.tenant, r.trace_parent,
       (SELECT s.attributes FROM flujo_spans s WHERE s.run_id = r.id AND s.kind = 'run') AS attributes
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint;

------------------------------------------------------------------------------------------------------------------- metrics

-- What has ended, counted before retention deletes it: the sweeper adds what ended since `flujo_sweeps.tallied_to` (`tally.sql`).
CREATE TABLE flujo_tallies (
    name   text NOT NULL,
    labels jsonb NOT NULL,
    value  double precision NOT NULL,
    PRIMARY KEY (name, labels)
) WITH (fillfactor = 50);

-- When an attempt could begin. The client that records one sends it too, so the sweeper leaves it alone for a second: that is no wait.
CREATE FUNCTION flujo_due(created timestamptz, available timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN available <= created + interval '2 s' OR NOT isfinite(available) THEN created ELSE available END
$$;

-- What ended in a span of time, as counters by name and labels. The buckets of a histogram are not cumulative. Pipelines after the first 200
-- are counted as `other`: what users name has no end, and a series for each would have none either.
CREATE FUNCTION flujo_counted(since timestamptz, until timestamptz) RETURNS TABLE (name text, labels jsonb, value double precision)
LANGUAGE sql STABLE AS $$
WITH named AS MATERIALIZED (
    SELECT p.name FROM flujo_pipelines p GROUP BY p.name ORDER BY min(p.created_at), p.name LIMIT 200
),
ended AS MATERIALIZED (
    SELECT a.key, CASE WHEN a.name IN (SELECT n.name FROM named n) THEN a.name ELSE 'other' END AS pipeline, a.queue, a.status, a.number, a.losses, a.latency_s, a.metadata,
           CASE WHEN a.status = 'failed' THEN coalesce(left(a.error ->> 'type_name', 100), '') END AS exception,
           CASE WHEN a.started_at IS NOT NULL THEN flujo_seconds(flujo_due(a.created_at, a.available_at), a.started_at) END AS waited_s
    FROM (
        SELECT a.*, (SELECT r.name FROM flujo_runs r WHERE r.id = a.run_id) AS name FROM flujo_attempts a
        WHERE a.ended_at >= since AND a.ended_at < until AND a.kind = 'step'
    ) a
),
bounds AS (
    SELECT ARRAY[0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200]::float8[] AS le
),
durations AS (
    SELECT e.pipeline, width_bucket(e.latency_s, b.le) AS bucket, count(*) AS count, sum(e.latency_s) AS s
    FROM ended e, bounds b WHERE e.latency_s IS NOT NULL GROUP BY 1, 2
),
waits AS (
    SELECT e.queue, width_bucket(e.waited_s, b.le) AS bucket, count(*) AS count, sum(e.waited_s) AS s
    FROM ended e, bounds b WHERE e.waited_s IS NOT NULL GROUP BY 1, 2
),
spent AS (
    SELECT e.pipeline, coalesce(s.model, 'several') AS model, sum(s.input_tokens) AS input, sum(s.output_tokens) AS output,
           sum(s.requests) AS requests, sum(s.cost_usd) AS cost
    FROM ended e CROSS JOIN LATERAL (SELECT x.* FROM flujo_spends x WHERE x.key = e.key OFFSET 0) s GROUP BY 1, 2
),
counts (name, labels, value) AS (
    SELECT 'flujo_attempts_total', jsonb_build_object('pipeline', e.pipeline, 'queue_name', e.queue, 'outcome', e.status), count(*)::float8
    FROM ended e GROUP BY e.pipeline, e.queue, e.status
    UNION ALL
    SELECT 'flujo_attempt_failures_total', jsonb_build_object('pipeline', e.pipeline, 'exception', e.exception), count(*)
    FROM ended e WHERE e.exception IS NOT NULL GROUP BY e.pipeline, e.exception
    UNION ALL
    SELECT v.name, jsonb_build_object('pipeline', t.pipeline), v.value
    FROM (
        SELECT e.pipeline, count(*) FILTER (WHERE e.number > 1) AS retries, sum(e.losses) AS losses,
               coalesce(sum(flujo_number(e.metadata -> 'aros.coercion.failed')), 0) AS refused
        FROM ended e GROUP BY e.pipeline
    ) t CROSS JOIN LATERAL (VALUES
        ('flujo_retries_total', t.retries), ('flujo_leases_lost_total', t.losses), ('flujo_outputs_refused_total', t.refused)
    ) v (name, value)
    UNION ALL
    SELECT 'flujo_output_repairs_total', jsonb_build_object('pipeline', e.pipeline, 'stage', substr(m.key, length('aros.coercion.stage.') + 1)), sum(flujo_number(m.value))
    FROM ended e CROSS JOIN LATERAL jsonb_each(e.metadata) m
    WHERE e.metadata ? 'aros.coercion.total' AND starts_with(m.key, 'aros.coercion.stage.')
    GROUP BY e.pipeline, m.key
    UNION ALL
    SELECT 'flujo_attempt_duration_seconds_bucket', jsonb_build_object('pipeline', d.pipeline, 'le', coalesce(b.le[d.bucket + 1]::text, '+Inf')), d.count
    FROM durations d, bounds b
    UNION ALL
    SELECT 'flujo_attempt_duration_seconds_sum', jsonb_build_object('pipeline', d.pipeline), sum(d.s) FROM durations d GROUP BY d.pipeline
    UNION ALL
    SELECT 'flujo_schedule_to_start_seconds_bucket', jsonb_build_object('queue_name', w.queue, 'le', coalesce(b.le[w.bucket + 1]::text, '+Inf')), w.count
    FROM waits w, bounds b
    UNION ALL
    SELECT 'flujo_schedule_to_start_seconds_sum', jsonb_build_object('queue_name', w.queue), sum(w.s) FROM waits w GROUP BY w.queue
    UNION ALL
    SELECT v.name, jsonb_build_object('pipeline', s.pipeline, 'model', s.model) || v.labels, v.value
    FROM spent s CROSS JOIN LATERAL (VALUES
        ('flujo_tokens_total', '{"direction": "input"}'::jsonb, s.input), ('flujo_tokens_total', '{"direction": "output"}', s.output),
        ('flujo_model_requests_total', '{}', s.requests), ('flujo_cost_dollars_total', '{}', s.cost)
    ) v (name, labels, value)
    UNION ALL
    -- Child runs are left out: their parents end with them. One look-up in the index for each pipeline and status.
    SELECT 'flujo_runs_total', jsonb_build_object('pipeline', coalesce(n.name, 'other'), 'outcome', s.status), sum(c.count)
    FROM (SELECT DISTINCT p.name FROM flujo_pipelines p) p
    CROSS JOIN (VALUES ('succeeded'), ('failed'), ('cancelled'), ('expired')) s (status)
    CROSS JOIN LATERAL (
        SELECT count(*) AS count FROM flujo_runs r
        WHERE r.name = p.name AND r.status = s.status AND r.ended_at >= since AND r.ended_at < until AND r.parent_run IS NULL
    ) c
    LEFT JOIN named n ON n.name = p.name
    GROUP BY n.name, s.status
)
-- Prometheus sees no increase in a series that begins above 0, so those that alerts ask for begin at 0.
SELECT c.name, c.labels, c.value FROM counts c
WHERE c.value > 0 OR c.name IN ('flujo_runs_total', 'flujo_retries_total', 'flujo_leases_lost_total', 'flujo_outputs_refused_total')
$$;

-- Counters of all that has ended since the schema had them. They never decrease: what is not in `flujo_tallies` yet is counted from rows.
CREATE VIEW flujo_totals (name, labels, value) AS
SELECT t.name, t.labels, sum(t.value)
FROM (
    SELECT name, labels, value FROM flujo_tallies
    UNION ALL
    SELECT c.name, c.labels, c.value FROM flujo_sweeps s CROSS JOIN LATERAL flujo_counted(s.tallied_to, 'infinity') c
) t GROUP BY t.name, t.labels;

-- Work that has not ended, by queue and by what it waits for: `running` and `queued` (a message is in the broker), `unsent` (it is due and was
-- not published yet), `delay` (a retry, or a time), `breaker`, `rate` or `limit`, `lane` (of a fan-out), `admission` (of its run), `parked`
-- (its run), `approval` (a person).
CREATE VIEW flujo_waiting (queue, reason, count, oldest_s) AS
SELECT w.queue, w.reason, count(*), greatest(0, extract(epoch FROM now() - min(w.since)))::float8
FROM (
    SELECT a.queue,
           CASE WHEN a.status = 'running' THEN 'running' WHEN a.status = 'paused' THEN 'approval'
                WHEN a.available_at = 'infinity' THEN 'lane' WHEN a.available_at > now() + interval '50 years' THEN 'admission'
                WHEN r.status = 'parked' THEN 'parked' WHEN a.status = 'queued' THEN 'queued'
                WHEN a.waits_for <> 'sleep' THEN split_part(a.waits_for, ' ', 1)
                WHEN d.due > now() THEN 'delay' ELSE 'unsent' END AS reason,
           CASE WHEN a.status = 'running' THEN a.started_at WHEN a.status = 'ready' AND a.waits_since IS NOT NULL THEN a.waits_since
                WHEN a.status = 'paused' OR d.due > now() THEN a.created_at ELSE d.due END AS since
    FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id CROSS JOIN LATERAL (SELECT flujo_due(a.created_at, a.available_at) AS due) d
    WHERE a.ended_at IS NULL
) w GROUP BY w.queue, w.reason;

-- The size of each table with its indexes, in bytes; a table's partitions are part of it.
CREATE VIEW flujo_sizes (name, bytes) AS
SELECT coalesce(p.relname, c.relname)::text, sum(pg_total_relation_size(c.oid))::bigint
FROM pg_class c
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE c.relkind = 'r' AND c.relnamespace = (SELECT o.relnamespace FROM pg_class o WHERE o.oid = 'flujo_runs'::regclass) AND starts_with(c.relname, 'flujo_')
GROUP BY 1;
