"""Export what has ended as traces of OpenTelemetry (ADR 55). Nothing here imports OpenTelemetry where its variables name no collector."""
