"""The same model whatever ran before it in the process."""

from __future__ import annotations

import pytest
import torch

from mmdeploy_lite.testing.models import zoo_model


@pytest.mark.parametrize(
    ('config', 'options'),
    [
        # the scales of its neck are of uninitialized memory
        ('mmdet::ssd/ssd300_coco.py', {}),
        # its queries are drawn, and nothing calibrates them
        (
            'mmdet::detr/detr_r50_8xb2-150e_coco.py',
            {'model.backbone.depth': 18, 'model.neck.in_channels': [512], 'model.encoder.num_layers': 1},
        ),
    ],
    ids=['SSD', 'DETR'],
)
def test_weights_do_not_depend_on_what_ran_before(config, options):
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        states.append(zoo_model(config, options, scale=(300, 300)).loaded.model.state_dict())
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
