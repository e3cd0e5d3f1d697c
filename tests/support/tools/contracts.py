"""The tests that `make test` runs of a contract that it runs whole on another implementation."""

from __future__ import annotations

SYSTEM = (
    "test_create_makes_an_empty_stream",
    "test_streams_are_listed_and_deleted",
    "test_messages_come_back_in_order_with_growing_offsets",
    "test_offsets_are_dense_per_partition",
    "test_a_range_is_half_open_and_chunked",
    "test_every_kind_of_value_comes_back",
    "test_offset_at_time",
    "test_truncated_messages_are_an_error",
    "test_an_older_epoch_is_fenced_everywhere",
    "test_several_partitions_are_appended_to_in_one_commit",
    "test_nothing_of_a_transaction_that_was_aborted_is_there",
    "test_a_bad_record_leaves_every_partition_whole",
    "test_progress_survives_reopening",
    "test_only_the_newest_of_every_key_stays",
)

OBJECT_STORE = (
    "test_put_if_absent_keeps_the_first",
    "test_replace_needs_the_current_tag",
    "test_replace_does_not_bring_back_the_deleted",
    "test_delete_is_idempotent",
    "test_get_of_nothing",
    "test_list_is_sorted_whole_and_by_folder",
    "test_list_after",
    "test_sizes",
    "test_the_pieces_of_an_object_are_the_object",
    "test_threads_race_to_create",
    "test_malformed_keys_are_refused",
)
