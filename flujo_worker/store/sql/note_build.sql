-- A worker of a build has loaded the code of a plan.
UPDATE flujo_pipelines SET build = %(build)s::text WHERE fingerprint = %(fingerprint)s::text AND build IS DISTINCT FROM %(build)s::text;
