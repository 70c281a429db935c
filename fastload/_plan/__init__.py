"""Which pixels: what happens to each sample, as integers and a matrix, before anything is decoded. Pure: no torch, no I/O."""

from fastload._plan.compose import compile, compile_fields
from fastload._plan.field_plan import FieldPlan
from fastload._plan.labels import (
    move_boxes,
    move_boxes_batch,
    move_from_image,
    move_points,
    move_points_batch,
    move_polylines,
    move_to_image,
)
from fastload._plan.output import OutputFormat
from fastload._plan.rows import PlanRow, PlanRows

__all__ = [
    "FieldPlan",
    "OutputFormat",
    "PlanRow",
    "PlanRows",
    "compile",
    "compile_fields",
    "move_boxes",
    "move_boxes_batch",
    "move_from_image",
    "move_points",
    "move_points_batch",
    "move_polylines",
    "move_to_image",
]
