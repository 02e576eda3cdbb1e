            CASE WHEN a.worker IS NULL THEN a.loss ELSE jsonb_build_object('worker', a.worker, 'how', NULL, 'at', now()) END
