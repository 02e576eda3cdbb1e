-- Undoes the statement that calls it: a merge whose attempt was ours, but whose scope or run was not as the decision had seen it.
CREATE FUNCTION flujo_undo() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the merge was not whole' USING ERRCODE = 'FJ001';
END
$$;
