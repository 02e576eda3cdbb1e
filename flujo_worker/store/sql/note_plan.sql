-- A worker has loaded the code of a plan, as a part of a build if it has a name for that.
WITH build AS (
    UPDATE flujo_pipelines SET build = %(build)s::text
    WHERE fingerprint = %(fingerprint)s::text AND %(build)s::text IS NOT NULL AND build IS DISTINCT FROM %(build)s::text
)
UPDATE flujo_workers SET plans = plans || %(fingerprint)s::text WHERE id = %(worker)s::text AND %(fingerprint)s::text <> ALL(plans);
